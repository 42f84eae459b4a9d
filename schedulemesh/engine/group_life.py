"""What becomes of placement groups: made, lost, kept, removed, and made again."""

from __future__ import annotations

from collections import Counter

from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.engine.claims import gained, is_whole
from schedulemesh.engine.facts import (
    GroupEnded,
    GroupEnding,
    GroupGrew,
    GroupPlanned,
    GroupWhole,
)
from schedulemesh.engine.homes import room_without
from schedulemesh.engine.instructions import CreateGroup, RemoveGroup
from schedulemesh.engine.pg_pool import Group, GroupPhase, dynamic_shape
from schedulemesh.engine.placing import NoSpot, Room, Spot
from schedulemesh.engine.state import Agent, MeshState
from schedulemesh.engine.turn import Turn


def spec_of(state: MeshState, pool_name: str) -> GroupsSpec | None:
    """How a pool keeps groups; None: it keeps none."""
    account = state.ledger.accounts.get(pool_name)
    return None if account is None else account.spec.groups


def plan(
    turn: Turn,
    pool_name: str,
    shape: GroupShape,
    spot: Spot,
    *,
    reserved: bool = False,
    agent_name: str | None = None,
) -> Group:
    """Put a group on the book; it holds what is free of its room."""
    group_id = f"{pool_name}-pg-{turn.state.groups.next_number}"
    turn.emit(
        GroupPlanned(
            group_id=group_id,
            pool_name=pool_name,
            shape=shape,
            node_ids=spot.node_ids,
            wanted=spot.devices,
            at=turn.at,
            reserved=reserved,
            agent_name=agent_name,
        )
    )
    group = turn.state.groups.by_id[group_id]
    grow(turn, group, waits=True)
    return group


def grow(turn: Turn, group: Group, *, waits: bool) -> None:
    """Let a planned group take what is free of its room."""
    for i, node_id in enumerate(group.node_ids):
        node = turn.state.cluster.nodes.get(node_id)
        if node is None:
            continue
        held, devices = gained(
            node, group.key(i), group.shape.bundles[i], group.wanted[i], waits=waits
        )
        if held or devices.units:
            turn.emit(GroupGrew(group_id=group.group_id, bundle=i, held=held, devices=devices))


def whole(state: MeshState, group: Group) -> bool:
    """Whether a planned group has all its room."""
    nodes = state.cluster.nodes
    return all(
        node_id in nodes and is_whole(nodes[node_id], group.key(i), group.shape.bundles[i])
        for i, node_id in enumerate(group.node_ids)
    )


def stands(state: MeshState, group_id: str) -> bool:
    """Whether the group is there for its agent."""
    group = state.groups.by_id.get(group_id)
    return group is not None and group.phase is GroupPhase.READY


def make(turn: Turn, group: Group) -> None:
    """Its room is whole: have Ray make it."""
    turn.emit(GroupWhole(group_id=group.group_id))
    turn.instruct(create_instruction(turn.state, group))


def create_instruction(state: MeshState, group: Group) -> CreateGroup:
    """The order to make this group, or to take it over."""
    spec = spec_of(state, group.pool_name)
    return CreateGroup(
        group_id=group.group_id,
        shape=group.shape,
        node_ids=group.node_ids,
        wait_s=(spec or GroupsSpec()).wait_s,
    )


def end(turn: Turn, group: Group, *, for_agent: str | None = None, dropped: bool = False) -> None:
    """Remove a group that nobody lives in; one that Ray was never asked for is simply struck off."""
    if group.phase is GroupPhase.ENDING:
        return
    if group.phase is GroupPhase.PLANNED:
        turn.emit(GroupEnded(group_id=group.group_id, at=turn.at))
        return
    turn.emit(GroupEnding(group_id=group.group_id, for_agent=for_agent, dropped=dropped))
    turn.instruct(RemoveGroup(group_id=group.group_id))


def leave(turn: Turn, agent: Agent) -> None:
    """An agent is off the book: keep its group for the next one, or remove it."""
    group = turn.state.groups.by_id.get(agent.group_id or "")
    if group is None or group.agent is not None or group.phase is GroupPhase.ENDING:
        return
    if agent.destroy_group and group.phase is GroupPhase.READY:
        end(turn, group, dropped=group.reserved)
    elif group.leaves_for is not None or group.phase is GroupPhase.PLANNED:
        end(turn, group)
    elif agent.destroy_group is None:
        drop_if_unwanted(turn, group)


def drop_if_unwanted(turn: Turn, group: Group) -> None:
    """Remove a group that nobody uses and that its pool would not keep."""
    if group.phase is not GroupPhase.READY or group.agent is not None:
        return
    spec = spec_of(turn.state, group.pool_name)
    if spec is None or not _kept(turn.state, spec, group):
        end(turn, group)


def _kept(state: MeshState, spec: GroupsSpec, group: Group) -> bool:
    book, pool_name = state.groups, group.pool_name
    if group.reserved:
        wanted = spec.reserved.count(group.shape) - book.dropped.get((pool_name, group.shape), 0)
        return book.living(pool_name, reserved=True, shape=group.shape) <= wanted
    within = spec.dynamic and book.dynamic_count(pool_name) <= spec.max_dynamic
    return within and (spec.reuse or spec.fill_target)


def expire(turn: Turn) -> None:
    """Remove dynamic groups that nobody has used for their pool's idle time."""
    for group in turn.state.groups.idle():
        spec = spec_of(turn.state, group.pool_name)
        over = spec is None or group.idle_since + spec.idle_s <= turn.at
        if over and (spec is None or not _fills(turn.state, spec, group)):
            end(turn, group)


def _fills(state: MeshState, spec: GroupsSpec, group: Group) -> bool:
    """Whether it is one of those that are kept for the pool's target."""
    if not spec.fill_target or group.shape != _target_shape(state, spec, group.pool_name):
        return False
    return (
        _living(state, group.pool_name) <= state.ledger.accounts[group.pool_name].spec.target_agents
    )


def replenish(turn: Turn, *, only: str | None = None) -> None:
    """Make the groups that pools want and lack, where there is room; idle ones make way for reserved ones."""
    state = turn.state
    if not state.nodes_known:
        return
    names = (only,) if only is not None else tuple(state.groups.of_pool)
    specs = [(name, spec) for name in names if (spec := spec_of(state, name)) is not None]
    due = [(n, s) for n, s in specs if state.groups.counts[n].failed_at + s.wait_s <= turn.at]
    for pool_name, spec in due:
        _make_reserved(turn, pool_name, spec)
    # What is being removed makes way for somebody, who must not find the room filled again.
    if any(group.phase is GroupPhase.ENDING for group in state.groups.by_id.values()):
        return
    for pool_name, spec in due:
        if spec.fill_target and spec.dynamic:
            _fill(turn, pool_name, spec)


def _make_reserved(turn: Turn, pool_name: str, spec: GroupsSpec) -> None:
    for shape, lacking in missing(turn.state, pool_name, spec).items():
        for _ in range(lacking):
            spot = Room(turn.state.cluster).place(shape)
            if isinstance(spot, NoSpot):
                _clear_way(turn, shape)
                break
            make(turn, plan(turn, pool_name, shape, spot, reserved=True))


def missing(state: MeshState, pool_name: str, spec: GroupsSpec) -> dict[GroupShape, int]:
    """How many reserved groups of each shape are wanted and not there."""
    book = state.groups
    lacking = {}
    for shape, wanted in Counter(spec.reserved).items():
        have = book.living(pool_name, reserved=True, shape=shape)
        short = wanted - book.dropped.get((pool_name, shape), 0) - have
        if short > 0:
            lacking[shape] = short
    return lacking


def _clear_way(turn: Turn, shape: GroupShape) -> None:
    """Remove idle groups where that makes room for a reserved one, unless those that end already do."""
    ending = [g for g in turn.state.groups.by_id.values() if g.phase is GroupPhase.ENDING]
    found = room_without(turn.state, shape, ending, turn.state.groups.idle())
    if isinstance(found, NoSpot):
        return
    for group in found[1]:
        end(turn, group)


def _fill(turn: Turn, pool_name: str, spec: GroupsSpec) -> None:
    state = turn.state
    shape = _target_shape(state, spec, pool_name)
    target = state.ledger.accounts[pool_name].spec.target_agents
    while (
        _living(state, pool_name) < target
        and state.groups.dynamic_count(pool_name) < spec.max_dynamic
    ):
        spot = Room(state.cluster).place(shape)
        if isinstance(spot, NoSpot):
            return
        make(turn, plan(turn, pool_name, shape, spot))


def _living(state: MeshState, pool_name: str) -> int:
    groups = (state.groups.by_id[g] for g in state.groups.of_pool.get(pool_name, ()))
    return sum(group.phase is not GroupPhase.ENDING for group in groups)


def _target_shape(state: MeshState, spec: GroupsSpec, pool_name: str) -> GroupShape:
    return dynamic_shape(spec, (state.ledger.accounts[pool_name].spec.default_agent(),))
