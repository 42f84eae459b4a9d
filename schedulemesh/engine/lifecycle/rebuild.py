"""Rebuilds agents that died from their last saved state, or records them as lost."""

from __future__ import annotations

from schedulemesh.domain.arrays import members_named
from schedulemesh.domain.payloads import JobPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import FIRST_ATTEMPT
from schedulemesh.engine.admission.decide import submit_again
from schedulemesh.engine.admission.registration import duplicate_task, refused_for_parent, register
from schedulemesh.engine.lifecycle.agents import current, order_runs
from schedulemesh.engine.messages.facts import AgentProcessRestarted, LossReported
from schedulemesh.engine.messages.outcomes import Pending, Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import AgentRestarted, RebuildRequested
from schedulemesh.engine.state.agents import LostAgent, Waiting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction


def agent_restarted(tx: Transaction, stimulus: AgentRestarted) -> None:
    """Ray restarted the process: a new life of the same incarnation, where and on what Ray put it."""
    agent = current(tx.state, stimulus.agent_name, stimulus.incarnation)
    if agent is not None and not isinstance(agent.phase, Waiting):
        tx.emit(
            AgentProcessRestarted(
                agent_name=stimulus.agent_name,
                pid=stimulus.pid,
                at=tx.now,
                node_id=stimulus.node_id,
                gpu_ids=stimulus.gpu_ids,
            )
        )
        order_runs(tx, agent)


def rebuild(tx: Transaction, stimulus: RebuildRequested) -> RequestOutcome:
    """Recreate a lost agent where it fits without an eviction; report once that it does not fit."""
    state = tx.state
    lost = state.lost.get(stimulus.agent_name)
    if lost is None:
        error = say("agent_not_lost", agent=stimulus.agent_name)
        return Refused(reason=Reason.AGENT_NOT_FOUND, error_text=error)
    if isinstance(lost.spec.payload, LeasePayload):
        error = say("lease_lost_groups", lease=lost.spec.name)
        outcome: RequestOutcome = Refused(reason=Reason.NOT_RESTARTABLE, error_text=error)
    elif isinstance(lost.spec.payload, JobPayload) and not lost.tasks:
        error = say("runner_lost", job=lost.spec.name)
        outcome = Refused(reason=Reason.NOT_RESTARTABLE, error_text=error)
    elif not lost.tasks and _ran_a_member(state, lost.spec.name):
        error = say("member_lost", agent=lost.spec.name)
        outcome = Refused(reason=Reason.NOT_RESTARTABLE, error_text=error)
    elif not lost.spec.class_key or not lost.spec.restartable:
        error = say("references_within", agent=lost.spec.name)
        outcome = Refused(reason=Reason.NOT_RESTARTABLE, error_text=error)
    else:
        outcome = _with_tasks(tx, lost, stimulus.request_id)
    if isinstance(outcome, Refused) and stimulus.agent_name in state.lost:
        tx.emit(LossReported(agent_name=stimulus.agent_name))
    return outcome


def _ran_a_member(state: MeshState, agent_name: str) -> bool:
    """Whether an agent was made for a member of an array on record; such agents run nothing else."""
    named = members_named(agent_name)
    return named is not None and any(
        one.agent_name == named[0] for one in state.arrays.by_id.values()
    )


def _with_tasks(tx: Transaction, lost: LostAgent, request_id: str | None) -> RequestOutcome:
    """The agent with its first task, built from that one's saved state; its other tasks with it.

    Tasks whose ids were taken meanwhile run elsewhere and are left out.
    """
    remaining_tasks = [t for t in lost.tasks if duplicate_task(tx.state, t[0].task_id) is None]
    first, state_key = next(iter(remaining_tasks or lost.tasks), (None, None))
    attempts = FIRST_ATTEMPT if first is None else lost.attempts.get(first.task_id, FIRST_ATTEMPT)
    outcome = submit_again(tx, lost.spec, first, state_key, request_id, attempts)
    if isinstance(outcome, Pending):
        for task, _ in remaining_tasks[1:]:
            if refused_for_parent(tx.state, task) is None:
                register(tx, task, lost.spec.name)
    return outcome
