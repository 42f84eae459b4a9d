"""How jobs are ended: what their drivers are told first, and what of adopted jobs ends with them."""

from __future__ import annotations

from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.engine.state.agents import Agent, Ending
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.agents.registry import Agents

#: The reasons for which a job is ended while its driver may run, by request or by the policy.
_NOTICED = (EndReason.DELETED, EndReason.OVER_CLAIM)
#: The reasons for which what an adopted job has in Ray is ended with its task. Otherwise it is left, as it
#: would have been without the adoption.
_ENDS_ADOPTED = (*_NOTICED, EndReason.PREEMPTED)


async def end_driver(agents: Agents, state: MeshState, agent: Agent) -> None:
    """Have the driver of a job end by itself, unless it has ended already: where somebody has asked for its
    end, after a notice and the grace that it was submitted with.
    """
    name, incarnation = agent.spec.name, agent.incarnation
    execute, within_s = agents.commands.execute, state.policy.cancel_timeout
    if _reason(agent) in _NOTICED:
        # Nothing of it is needed any more, so it has grace only where that was asked for.
        payload = agent.spec.payload
        job_grace_s = payload.grace_s if isinstance(payload, JobPayload) else None
        grace_s = state.policy.preemption_grace_s if job_grace_s is None else job_grace_s
        # Its runner answers when the driver has ended, or the time is over.
        limit_s = min(within_s, 1.0) + grace_s
        await execute(name, incarnation, "notice", limit_s, seconds=grace_s)
    await execute(name, incarnation, "cancel", within_s)


def adopted_to_end(agent: Agent) -> str:
    """The adopted Ray job that is to end with an agent that is being ended; empty: there is none."""
    return agent.spec.payload.adopts if _reason(agent) in _ENDS_ADOPTED else ""


def _reason(agent: Agent) -> EndReason | None:
    """Why an agent is being ended; None: it is not."""
    return agent.phase.reason if isinstance(agent.phase, Ending) else None
