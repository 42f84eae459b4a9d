"""Agents that wait for others to leave: what is freed is theirs, and when all of it is there they start."""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.reasons import EndReason, Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.admission.admit import start_instruction
from schedulemesh.engine.admission.claims import gained, is_whole
from schedulemesh.engine.admission.decide import readmit
from schedulemesh.engine.lifecycle.eviction import all_preempted
from schedulemesh.engine.lifecycle.groups import grow, is_placed, leave, make, whole
from schedulemesh.engine.messages.facts import AgentEnded, AgentReady, ClaimGrew, Devices, Share
from schedulemesh.engine.messages.outcomes import Refused, RequestOutcome
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.quota import pass_on
from schedulemesh.engine.transaction import Transaction


def let_in(tx: Transaction, agent_name: str | None, shares: Iterable[Share] = ()) -> None:
    """Something left for this agent, and its shares are its own now; start it when nothing is left to wait
    for. What was freed and does not do is given back, and its victims run again.
    """
    newcomer = tx.state.agents.get(agent_name or "")
    if newcomer is None or newcomer.phase is not AgentPhase.WAITING:
        return
    _grow(tx, newcomer, shares)
    group = tx.state.groups.by_id.get(newcomer.group_id or "")
    if newcomer.waits_for or newcomer.waits_for_groups - {newcomer.group_id}:
        return
    if group is not None and group.phase is GroupPhase.PLANNED and whole(tx.state, group):
        make(tx, group)
        return
    if group is not None and group.phase is GroupPhase.CREATING:
        return
    if not _whole(tx.state, newcomer):
        error = "what the victims freed was not what the books had promised; submit again"
        undo(tx, newcomer, Reason.PREEMPTION_FAILED, error)
        return
    tx.emit(AgentReady(agent_name=newcomer.spec.name, at=tx.now))
    tx.instruct(start_instruction(tx.state, newcomer.spec.name))


def undo(tx: Transaction, agent: Agent, reason: Reason, error: str) -> RequestOutcome | None:
    """Strike a newcomer off and run its victims again where ScheduleMesh knows how.

    A group that nobody keeps goes only after them, because it may be the one that they lived in.
    """
    _terminate(tx, agent, EndReason.START_FAILED)
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.phase is GroupPhase.PLANNED:
        leave(tx, agent)
    restarted: list[str] = []
    lost: list[str] = []
    made: set[str] = set()
    for candidate in agent.evicting:
        past = tx.state.preempted.get(candidate.task_id)
        again = past is not None and readmit(tx, past, made)
        (restarted if again else lost).append(candidate.task_id)
    leave(tx, agent)
    refused = Refused(
        reason=reason, error=error, restarted=tuple(restarted), not_restarted=tuple(lost)
    )
    return tx.answer(agent.request_id, refused)


def ended(tx: Transaction, agent: Agent, reason: EndReason) -> tuple[str, ...]:
    """Strike an agent off the book; its group is kept or goes. Returns the ids of its evicted tasks."""
    evicted = _terminate(tx, agent, reason)
    leave(tx, agent)
    return evicted


def _terminate(tx: Transaction, agent: Agent, reason: EndReason) -> tuple[str, ...]:
    """Whoever asked for the eviction of one of its tasks is answered before the task goes with it."""
    evicted = all_preempted(tx, agent)
    tx.emit(
        AgentEnded(
            agent_name=agent.spec.name, incarnation=agent.incarnation, at=tx.now, reason=reason
        )
    )
    return evicted


def _grow(tx: Transaction, newcomer: Agent, shares: Iterable[Share]) -> None:
    """Take what is free now of what the newcomer, or the group that is made for it, lacks."""
    paid, _ = pass_on(shares, newcomer.spec.resources - newcomer.paid)
    held, devices = NOTHING, Devices()
    node = tx.state.cluster.nodes.get(newcomer.node_id or "")
    if node is not None and newcomer.group_id is None:
        held, devices = gained(
            node,
            newcomer.spec.name,
            newcomer.spec.resources,
            waits=bool(newcomer.waits_for or newcomer.waits_for_groups),
        )
    if newcomer.group_id is None or paid:
        name = newcomer.spec.name
        tx.emit(ClaimGrew(agent_name=name, shares=paid, held=held, devices=devices))
    group = tx.state.groups.by_id.get(newcomer.group_id or "")
    if group is not None and group.phase is GroupPhase.PLANNED:
        alone = not newcomer.waits_for and newcomer.waits_for_groups <= {group.group_id}
        grow(tx, group, waits=not alone)


def _whole(state: MeshState, newcomer: Agent) -> bool:
    """Whether quota and room are complete."""
    need = newcomer.spec.resources
    if newcomer.paid != need:
        return False
    if newcomer.group_id is not None:
        mine = state.groups.by_id.get(newcomer.group_id)
        return (
            is_placed(state, newcomer.group_id)
            and mine is not None
            and mine.agent == newcomer.spec.name
        )
    node = state.cluster.nodes.get(newcomer.node_id or "")
    if node is None:
        return newcomer.node_id is None
    return is_whole(node, newcomer.spec.name, need)
