"""Handles the executor's reports about placement groups: created, not placed, removed, or lost."""

from __future__ import annotations

from schedulemesh.domain.end_reasons import EndReason, ReturnReason
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.admission.groups import create_instruction, drop_if_unwanted
from schedulemesh.engine.admission.pending import hand_on, undo
from schedulemesh.engine.admission.refusals import lost_node
from schedulemesh.engine.messages.facts import AgentEnding, GroupEnded, GroupEnding, GroupReady
from schedulemesh.engine.messages.instructions import RemoveGroup, StopAgent
from schedulemesh.engine.messages.stimuli import GroupCreated, GroupCreateFailed, GroupGone
from schedulemesh.engine.state.agents import Running, Starting, Waiting
from schedulemesh.engine.state.groups import Group, GroupPhase
from schedulemesh.engine.transaction import Transaction


def group_created(tx: Transaction, stimulus: GroupCreated) -> None:
    """Ray has placed the group: whoever it was made for moves in."""
    group = tx.state.groups.by_id.get(stimulus.group_id)
    if group is None or group.phase is not GroupPhase.CREATING:
        return
    tx.emit(GroupReady(group_id=group.group_id, at=tx.now))
    tx.wake(group.agent)
    drop_if_unwanted(tx, group)


def group_create_failed(tx: Transaction, stimulus: GroupCreateFailed) -> None:
    """Ray did not place the group in time; whoever it was made for is refused."""
    _gone(tx, stimulus.group_id, stimulus.error, ReturnReason.ROOM_TAKEN)


def group_gone(tx: Transaction, stimulus: GroupGone) -> None:
    """A group is gone from Ray: its room is free for whom it left, or for those that are wanted."""
    _gone(tx, stimulus.group_id, "")


def node_lost(tx: Transaction, node_id: str) -> None:
    """The groups with a bundle on this node are lost, with those who live in them. A virtual group keeps what
    its job claims on other nodes until the job has ended there.
    """
    cause = f"node {lost_node(tx.hosts, node_id)} died"
    for group in [g for g in tx.state.groups.by_id.values() if node_id in g.node_ids]:
        if group.phase is GroupPhase.PLANNED:
            _gone(tx, group.group_id, cause)
            continue
        if group.phase is not GroupPhase.ENDING and not group.shape.virtual:
            tx.emit(GroupEnding(group_id=group.group_id))
            tx.instruct(RemoveGroup(group_id=group.group_id))
        _turn_out(tx, group, cause)


def reconcile_groups(tx: Transaction, living: frozenset[str]) -> None:
    """After a recovery: go on with what was under way; what is gone from Ray is lost."""
    # By the end of an agent, in this very step.
    removed = {order.group_id for order in tx.instructions if isinstance(order, RemoveGroup)}
    for group in list(tx.state.groups.by_id.values()):
        if group.group_id not in tx.state.groups.by_id:
            continue
        exists = group.group_id in living
        if group.phase is GroupPhase.CREATING:
            tx.instruct(create_instruction(tx.state, group))
        elif group.phase is GroupPhase.ENDING and exists:
            if group.group_id not in removed:
                tx.instruct(RemoveGroup(group_id=group.group_id))
        elif group.phase in (GroupPhase.READY, GroupPhase.ENDING) and not exists:
            _gone(tx, group.group_id, "")


def _gone(
    tx: Transaction, group_id: str, error: str, why: ReturnReason = ReturnReason.ROOM_LOST
) -> None:
    group = tx.state.groups.by_id.get(group_id)
    if group is None:
        return
    tx.emit(GroupEnded(group_id=group_id, at=tx.now, error=error))
    hand_on(tx, group.waiters)
    if group.phase is not GroupPhase.ENDING:
        # Its room is free by now, so that victims who run again may have it.
        _turn_out(tx, group, error or "its placement group is gone from Ray", why)


def _turn_out(
    tx: Transaction, group: Group, cause: str, why: ReturnReason = ReturnReason.ROOM_LOST
) -> None:
    """An agent in a lost group is lost, and an agent that waits for the group is refused."""
    for name in (group.agent, group.promised_to):
        agent = tx.state.agents.get(name or "")
        if agent is None:
            continue
        if isinstance(agent.phase, Waiting):
            error = f"the placement group of agent {agent.spec.name!r} is not to be had: {cause}"
            undo(tx, agent, Reason.GROUP_UNPLACEABLE, error, why=why)
        elif isinstance(agent.phase, Running):
            tx.emit(AgentEnding(agent_name=agent.spec.name, reason=EndReason.LOST, at=tx.now))
            tx.instruct(StopAgent(agent_name=agent.spec.name, incarnation=agent.incarnation))
        elif isinstance(agent.phase, Starting):
            tx.instruct(StopAgent(agent_name=agent.spec.name, incarnation=agent.incarnation))
