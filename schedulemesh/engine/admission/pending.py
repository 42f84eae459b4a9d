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


def grow_claims(tx: Transaction) -> None:
    """Let each agent that was woken take what it lacks of what is free now, before anybody else can."""
    for name, freed in tx.woken.items():
        if freed is None:
            continue
        tx.woken[name] = None
        agent = tx.state.agents.get(name)
        if agent is not None and agent.phase is AgentPhase.WAITING:
            _grow(tx, agent, freed)


def continue_start(tx: Transaction, agent: Agent) -> None:
    """Take the next step of a waiting agent that waits for nobody else any more: have its group created, or
    start it. Where what was freed is not enough, it is refused and its victims run again.
    """
    if agent.waits_for or agent.waits_for_groups - {agent.group_id}:
        return
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.phase is GroupPhase.PLANNED and whole(tx.state, group):
        make(tx, group)
        return
    if group is not None and group.phase is GroupPhase.CREATING:
        return
    if not _whole(tx.state, agent):
        error = "what the victims freed was not what the books had promised; submit again"
        undo(tx, agent, Reason.PREEMPTION_FAILED, error)
        return
    tx.emit(AgentReady(agent_name=agent.spec.name, at=tx.now))
    tx.instruct(start_instruction(tx.state, agent.spec.name))


def undo(tx: Transaction, agent: Agent, reason: Reason, error: str) -> RequestOutcome | None:
    """Strike a newcomer off and run its victims again where ScheduleMesh knows how.

    A group that nobody keeps goes only after them, because it may be the one that they lived in.
    """
    _terminate(tx, agent, EndReason.START_FAILED)
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.phase is GroupPhase.PLANNED:
        leave(tx, agent)
    grow_claims(tx)
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
    if paid or held or devices.units:
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
