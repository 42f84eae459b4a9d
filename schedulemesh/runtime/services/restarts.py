"""Waits for the victims of a failed submission to be restarted, and reports which of them run again."""

from __future__ import annotations

import asyncio
import time

import msgspec

from schedulemesh.engine.messages.outcomes import Refused, RequestOutcome
from schedulemesh.engine.state.agents import AgentPhase, Running, Starting, Waiting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.reactor import Reactor

#: Seconds between two checks: doubled from the first to the last.
_POLL_S, _POLL_MAX_S = 0.01, 0.2


async def with_real_restarts(reactor: Reactor, outcome: RequestOutcome) -> RequestOutcome:
    """The outcome, once each restarted victim either runs or has failed; ``restarted`` names those that run,
    ``requeued`` those that wait in the queue, ``not_restarted`` all others.
    """
    if not isinstance(outcome, Refused):
        return outcome
    returned = (*outcome.restarted, *outcome.requeued)
    if not returned:
        return outcome
    until, wait_s = time.monotonic() + reactor.state.policy.start_timeout, _POLL_S
    while any(_is_starting(reactor.state, t) for t in returned) and time.monotonic() < until:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _POLL_MAX_S)
    run = tuple(t for t in returned if _runs(reactor.state, t))
    waiting = tuple(t for t in returned if t in reactor.state.queue.by_id)
    lost = tuple(t for t in returned if t not in run and t not in waiting)
    return msgspec.structs.replace(
        outcome,
        restarted=run,
        requeued=waiting,
        not_restarted=(*outcome.not_restarted, *lost),
    )


def _is_starting(state: MeshState, task_id: str) -> bool:
    return isinstance(_phase(state, task_id), (Waiting, Starting))


def _runs(state: MeshState, task_id: str) -> bool:
    return isinstance(_phase(state, task_id), Running)


def _phase(state: MeshState, task_id: str) -> AgentPhase | None:
    """The phase of the task's agent; None: there is no such task."""
    task = state.running.by_id.get(task_id)
    agent = None if task is None else state.agents.get(task.agent_name)
    return None if agent is None else agent.phase
