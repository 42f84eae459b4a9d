"""Revokes the claims of tasks that borrow and do not run yet, so that an owner gets its quota back at once.

Nothing of such a task is saved, because it has done nothing. One that waits for its victims is removed, and
what these free is for the owner; they are being saved already, and leave all the same. One that is starting
is stopped, and the owner waits for the end of its process. In both cases its task waits in the queue again,
at its place; a submission that did not ask to wait is refused. Who was evicted for it runs again where that
is possible (``pending.put_back``).

Who reclaims holds no loan of the kinds that it gets back, so nothing can be taken back from it in turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.domain.end_reasons import EndReason, ReturnReason
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.admission.groups import end_group, leave
from schedulemesh.engine.admission.requeue import return_of, task_without_room
from schedulemesh.engine.messages.facts import AgentEnded, AgentEnding
from schedulemesh.engine.messages.instructions import StopAgent
from schedulemesh.engine.state.agents import Agent, Waiting
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.transaction import Transaction

#: Why a start was cancelled.
WHY = say("gave_way_to_owner")


def revoke(tx: Transaction, agent_names: Iterable[str]) -> None:
    """Revoke the claims of these agents."""
    for name in agent_names:
        agent = tx.state.agents[name]
        if isinstance(agent.phase, Waiting):
            _remove(tx, agent)
            continue
        tx.emit(AgentEnding(agent_name=name, reason=EndReason.START_FAILED, at=tx.now))
        tx.instruct(StopAgent(agent_name=name, incarnation=agent.incarnation))


def _remove(tx: Transaction, agent: Agent) -> None:
    """Remove an agent that waits, with a group that was to be made for it."""
    task = task_without_room(tx.state, agent, Reason.PREEMPTION_FAILED)
    tx.emit(
        AgentEnded(
            agent_name=agent.spec.name,
            incarnation=agent.incarnation,
            at=tx.now,
            reason=EndReason.START_FAILED,
            error=WHY,
            returned=return_of(task, ReturnReason.QUOTA_TAKEN_BACK),
        )
    )
    leave(tx, agent)
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.phase is GroupPhase.CREATING and not group.reserved:
        end_group(tx, group)
    tx.revoked.append((agent, task))
