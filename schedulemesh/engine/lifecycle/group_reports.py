"""What the hands report of placement groups: made, not made, gone, or lost with a node."""

from __future__ import annotations

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.engine.admission.pending import let_in, undo
from schedulemesh.engine.lifecycle.groups import create_instruction, drop_if_unwanted, replenish
from schedulemesh.engine.messages.facts import AgentEnding, GroupEnded, GroupEnding, GroupReady
from schedulemesh.engine.messages.instructions import CreateGroup, RemoveGroup, StopAgent
from schedulemesh.engine.messages.stimuli import GroupCreated, GroupCreateFailed, GroupGone
from schedulemesh.engine.state.groups import Group, GroupPhase
from schedulemesh.engine.state.mesh_state import LOST
from schedulemesh.engine.transaction import Turn

#: What this very step may have asked for already, because somebody turned out gone.
_ORDERS = (CreateGroup, RemoveGroup)


def group_created(turn: Turn, stimulus: GroupCreated) -> None:
    """Ray has placed the group: whoever it was made for moves in."""
    group = turn.state.groups.by_id.get(stimulus.group_id)
    if group is None or group.phase is not GroupPhase.CREATING:
        return
    turn.emit(GroupReady(group_id=group.group_id, at=turn.at))
    let_in(turn, group.agent)
    drop_if_unwanted(turn, group)


def group_create_failed(turn: Turn, stimulus: GroupCreateFailed) -> None:
    """Ray did not place the group in time; whoever it was made for is refused."""
    _gone(turn, stimulus.group_id, stimulus.error)


def group_gone(turn: Turn, stimulus: GroupGone) -> None:
    """A group is gone from Ray: its room is free for whom it left, or for those that are wanted."""
    _gone(turn, stimulus.group_id, "")


def node_lost(turn: Turn, node_id: str) -> None:
    """The groups with a bundle on this node are lost, with those who live in them."""
    for group in [g for g in turn.state.groups.by_id.values() if node_id in g.node_ids]:
        if group.phase is GroupPhase.PLANNED:
            _gone(turn, group.group_id, f"node {node_id} died")
            continue
        if group.phase is not GroupPhase.ENDING:
            turn.emit(GroupEnding(group_id=group.group_id))
            turn.instruct(RemoveGroup(group_id=group.group_id))
        _turn_out(turn, group, f"node {node_id} died")


def settle_groups(turn: Turn, living: frozenset[str]) -> None:
    """After a recovery: go on with what was under way; what is gone from Ray is lost."""
    asked = {order.group_id for order in turn.instructions if isinstance(order, _ORDERS)}
    for group in list(turn.state.groups.by_id.values()):
        if group.group_id not in turn.state.groups.by_id:
            continue
        lives = group.group_id in living
        if group.group_id in asked and (lives or group.phase is GroupPhase.CREATING):
            continue
        if group.phase is GroupPhase.CREATING:
            turn.instruct(create_instruction(turn.state, group))
        elif group.phase is GroupPhase.ENDING and lives:
            turn.instruct(RemoveGroup(group_id=group.group_id))
        elif group.phase in (GroupPhase.READY, GroupPhase.ENDING) and not lives:
            _gone(turn, group.group_id, "")
    replenish(turn)


def _gone(turn: Turn, group_id: str, error: str) -> None:
    group = turn.state.groups.by_id.get(group_id)
    if group is None:
        return
    turn.emit(GroupEnded(group_id=group_id, at=turn.at, error=error))
    if group.phase is not GroupPhase.ENDING:
        # Its room is free by now, so that victims who run again may have it.
        _turn_out(turn, group, error or "its placement group is gone from Ray")
    let_in(turn, group.leaves_for)
    replenish(turn)


def _turn_out(turn: Turn, group: Group, why: str) -> None:
    """Whoever lives in a lost group is lost, and whoever waits for it is refused."""
    for name in (group.agent, group.promised_to):
        agent = turn.state.agents.get(name or "")
        if agent is None:
            continue
        if agent.phase is AgentPhase.WAITING:
            error = f"the placement group of agent {agent.spec.name!r} is not to be had: {why}"
            undo(turn, agent, "group_unplaceable", error)
        elif agent.phase is AgentPhase.RUNNING:
            turn.emit(AgentEnding(agent_name=agent.spec.name, reason=LOST, at=turn.at))
            turn.instruct(StopAgent(agent_name=agent.spec.name, incarnation=agent.incarnation))
        elif agent.phase is AgentPhase.STARTING:
            turn.instruct(StopAgent(agent_name=agent.spec.name, incarnation=agent.incarnation))
