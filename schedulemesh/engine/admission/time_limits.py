"""How long tasks may run: their limits and those of their pools, and how long their ends take after that.

A task ends at the latest by its limit and what its end takes then: notice, saving, cancelling. So this time
is certain, unlike an estimate: reserved starts and backfill count on it.
"""

from __future__ import annotations

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import JobPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.mesh_state import MeshState

#: The least seconds of grace of jobs and leases that name none.
DEFAULT_GRACE_S = 30.0


def grace_of(state: MeshState, agent: AgentSpec) -> float:
    """Seconds from the notice of an eviction of this agent to its end. A job, and the holder of a lease, need
    some to save their work, since nobody else can save it.
    """
    payload = agent.payload
    if not isinstance(payload, (JobPayload, LeasePayload)):
        return state.policy.preemption_grace_s
    if payload.grace_s is None:
        return max(DEFAULT_GRACE_S, state.policy.preemption_grace_s)
    return payload.grace_s


def leaving_s(state: MeshState, agent: AgentSpec) -> float:
    """Seconds that the eviction of an agent takes at most: its notice, saving and cancelling."""
    return grace_of(state, agent) + state.policy.save_timeout + state.policy.cancel_timeout


def run_limit(state: MeshState, pool_name: str, task: TaskSpec) -> float | None:
    """Seconds that an attempt of a task may run that starts now; None: no limit."""
    account = state.ledger.accounts.get(pool_name)
    return task.max_run_s if account is None else account.spec.run_limit(task.max_run_s)


def longest_run_s(
    state: MeshState, pool_name: str, task: TaskSpec, agent: AgentSpec
) -> float | None:
    """Seconds after which a task that starts now has ended for certain; None: no limit."""
    limit = run_limit(state, pool_name, task)
    return None if limit is None else limit + leaving_s(state, agent)


def beyond_pool(state: MeshState, pool_name: str, max_run_s: float | None) -> Refused | None:
    """The refusal of a limit that is longer than a pool allows; None: it is not."""
    account = state.ledger.accounts.get(pool_name)
    most = None if account is None else account.spec.max_run_s
    if max_run_s is None or most is None or max_run_s <= most:
        return None
    return Refused(
        reason=Reason.EXCEEDS_TIME_LIMIT,
        error_text=say("run_too_long", run=max_run_s, pool=pool_name, most=most),
        hint_text=say("run_too_long_hint", most=most),
    )


def pools_below(state: MeshState, max_run_s: float | None) -> list[str]:
    """The pools in which no task may run for so long."""
    if max_run_s is None:
        return []
    return [
        name
        for name, account in state.ledger.accounts.items()
        if account.spec.max_run_s is not None and account.spec.max_run_s < max_run_s
    ]
