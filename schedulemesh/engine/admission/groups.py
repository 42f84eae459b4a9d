"""The lifecycle of placement groups: creates, keeps, removes and recreates them."""

from __future__ import annotations

from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.engine.admission.claims import gained, is_whole
from schedulemesh.engine.admission.windows import closed_to_groups
from schedulemesh.engine.messages.facts import (
    Devices,
    GroupEnded,
    GroupEnding,
    GroupGrew,
    GroupPlanned,
    GroupWhole,
)
from schedulemesh.engine.messages.instructions import CreateGroup, RemoveGroup
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import release, without_idle
from schedulemesh.engine.placement.placers import BundlePlacement
from schedulemesh.engine.state.agents import Agent, Ending
from schedulemesh.engine.state.devices import devices_for_all
from schedulemesh.engine.state.groups import Group, GroupPhase, dynamic_shape
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction


def spec_of(state: MeshState, pool_name: str) -> GroupsSpec | None:
    """How a pool keeps groups; None: it keeps none, or is being deleted."""
    account = state.ledger.accounts.get(pool_name)
    ends = pool_name in state.drains.ending
    return None if account is None or ends else account.spec.groups


def plan_group(
    tx: Transaction,
    pool_name: str,
    shape: GroupShape,
    placement: BundlePlacement,
    *,
    reserved: bool = False,
    agent_name: str | None = None,
    waits: bool = False,
) -> Group:
    """Add a group; it holds the free part of its resources. ``waits``: victims end for it."""
    group_id = f"{pool_name}-pg-{tx.state.groups.next_number}"
    tx.emit(
        GroupPlanned(
            group_id=group_id,
            pool_name=pool_name,
            shape=shape,
            node_ids=placement.node_ids,
            at=tx.now,
            reserved=reserved,
            agent_name=agent_name,
        )
    )
    group = tx.state.groups.by_id[group_id]
    grow(tx, group, waits=waits)
    return group


def grow(tx: Transaction, group: Group, *, waits: bool) -> None:
    """Let a planned group take what is free of its room; devices once nobody is waited for."""
    devices = {} if waits else _devices(tx.state, group)
    for i, node_id in enumerate(group.node_ids):
        node = tx.state.cluster.nodes.get(node_id)
        if node is None:
            continue
        taken, _ = gained(node, group.key(i), group.shape.bundles[i], waits=True)
        bundle_devices = devices.get(i, Devices())
        if taken or bundle_devices.units:
            tx.emit(
                GroupGrew(group_id=group.group_id, bundle=i, held=taken, devices=bundle_devices)
            )


def _devices(state: MeshState, group: Group) -> dict[int, Devices]:
    """Devices for the bundles that have none yet; those on one node are chosen together."""
    devices_of_bundle: dict[int, Devices] = {}
    for node_id in set(group.node_ids):
        node = state.cluster.nodes.get(node_id)
        if node is None:
            continue
        bundles = [i for i, other in enumerate(group.node_ids) if other == node_id]
        lacking = [
            i
            for i in bundles
            if (allocation := node.allocations.get(group.key(i))) is None
            or not allocation.devices.units
        ]
        gpus = [group.shape.bundles[i].gpu for i in lacking]
        chosen = devices_for_all(node.devices, gpus)
        devices_of_bundle.update(zip(lacking, chosen or (), strict=False))
    return devices_of_bundle


def whole(state: MeshState, group: Group) -> bool:
    """Whether a planned group has all its room."""
    nodes = state.cluster.nodes
    return all(
        node_id in nodes and is_whole(nodes[node_id], group.key(i), group.shape.bundles[i])
        for i, node_id in enumerate(group.node_ids)
    )


def is_placed(state: MeshState, group_id: str) -> bool:
    """Whether the group is there for its agent."""
    group = state.groups.by_id.get(group_id)
    return group is not None and group.phase is GroupPhase.READY


def make(tx: Transaction, group: Group) -> None:
    """Its room is whole: have Ray make it."""
    tx.emit(GroupWhole(group_id=group.group_id))
    tx.instruct(create_instruction(tx.state, group))


def create_instruction(state: MeshState, group: Group) -> CreateGroup:
    """The order to make this group, or to take it over."""
    spec = spec_of(state, group.pool_name)
    return CreateGroup(
        group_id=group.group_id,
        shape=group.shape,
        node_ids=group.node_ids,
        wait_s=(spec or GroupsSpec()).wait_s,
    )


def end_group(
    tx: Transaction, group: Group, *, for_agent: str | None = None, dropped: bool = False
) -> None:
    """Remove a group without an agent; one that was never requested from Ray just leaves the state."""
    if group.phase is GroupPhase.ENDING:
        return
    if group.phase is GroupPhase.PLANNED:
        tx.emit(GroupEnded(group_id=group.group_id, at=tx.now))
        return
    tx.emit(GroupEnding(group_id=group.group_id, for_agent=for_agent, dropped=dropped))
    tx.instruct(RemoveGroup(group_id=group.group_id))


def leave(tx: Transaction, agent: Agent, destroy_group: bool | None = None) -> None:
    """An agent has ended: keep its group for the next one, or remove it. ``destroy_group``: what was asked
    for; None: as the pool's definition says.
    """
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is None or group.agent is not None or group.phase is GroupPhase.ENDING:
        return
    if destroy_group and group.phase is not GroupPhase.PLANNED:
        end_group(tx, group, dropped=group.reserved and not _in_excess(tx.state, group))
    elif group.leaves_for is not None or group.phase is GroupPhase.PLANNED:
        end_group(tx, group)
    elif destroy_group is None or not _may_stay(tx.state, group):
        drop_if_unwanted(tx, group)


def stays(state: MeshState, agent: Agent) -> bool:
    """Whether the group of an agent that is being terminated is kept for another agent when it has ended."""
    group = state.groups.by_id.get(agent.group_id or "")
    if group is None or group.phase is not GroupPhase.READY or group.leaves_for is not None:
        return False
    if group.promised_to is not None:
        return True
    destroyed = isinstance(agent.phase, Ending) and agent.phase.destroy_group
    spec = spec_of(state, group.pool_name)
    return not destroyed and spec is not None and _kept(state, spec, group)


def drop_if_unwanted(tx: Transaction, group: Group) -> None:
    """Remove a group that nobody uses and that its pool would not keep."""
    if group.phase is not GroupPhase.READY or group.agent is not None:
        return
    spec = spec_of(tx.state, group.pool_name)
    if spec is None or not _kept(tx.state, spec, group):
        end_group(tx, group)


def _may_stay(state: MeshState, group: Group) -> bool:
    """Whether a group that somebody asked to be kept can be: not where its pool keeps none any more, or has
    all its reserved ones without it.
    """
    if spec_of(state, group.pool_name) is None:
        return False
    return not group.reserved or not _in_excess(state, group)


def _kept(state: MeshState, spec: GroupsSpec, group: Group) -> bool:
    if group.reserved:
        return not _in_excess(state, group)
    if group.shape.virtual:
        return False
    within = spec.dynamic and state.groups.dynamic_count(group.pool_name) <= spec.max_dynamic
    return within and (spec.reuse or (not group.used and _fills(state, spec, group)))


def _in_excess(state: MeshState, group: Group) -> bool:
    """Whether there are more reserved groups of its shape than its pool wants."""
    table, pool_name = state.groups, group.pool_name
    have = table.living(pool_name, reserved=True, shape=group.shape)
    return have > table.reserved_count(pool_name, group.shape)


def expire(tx: Transaction) -> None:
    """Remove dynamic groups that nobody has used for their pool's idle time."""
    for group in _overdue(tx.state, tx.now):
        spec = spec_of(tx.state, group.pool_name)
        if spec is None or not _fills(tx.state, spec, group):
            end_group(tx, group)


def _overdue(state: MeshState, now: float) -> list[Group]:
    overdue: list[Group] = []
    for pool_name, groups in state.groups.free_dynamic():
        idle_s = (spec_of(state, pool_name) or GroupsSpec()).idle_s
        for group in groups:
            if group.idle_since + idle_s > now:
                break
            overdue.append(group)
    return sorted(overdue, key=lambda group: (group.idle_since, group.group_id))


def _fills(state: MeshState, spec: GroupsSpec, group: Group) -> bool:
    """Whether it is one of those that are kept for the pool's target."""
    if not spec.fill_target or group.shape != _target_shape(state, spec, group.pool_name):
        return False
    target = state.ledger.accounts[group.pool_name].spec.target_agents
    return state.groups.count(group.pool_name) <= target


def replenish(tx: Transaction) -> None:
    """Create the missing groups of pools where there is room; idle ones are removed for reserved ones."""
    state = tx.state
    if not state.nodes_known:
        return
    names = tuple(state.groups.of_pool)
    specs = [(name, spec) for name in names if (spec := spec_of(state, name)) is not None]
    due = [(n, s) for n, s in specs if state.groups.counts[n].failed_at + s.wait_s <= tx.now]
    for pool_name, _ in due:
        with state.cluster.without(closed_to_groups(state, pool_name, tx.now)):
            _make_reserved(tx, pool_name)
    # A group that is being removed frees its resources for another claim: do not take them again.
    if state.groups.ending:
        return
    for pool_name, spec in due:
        if spec.fill_target and spec.dynamic:
            with state.cluster.without(closed_to_groups(state, pool_name, tx.now)):
                _fill(tx, pool_name, spec)


def _make_reserved(tx: Transaction, pool_name: str) -> None:
    for shape, lacking in dict(tx.state.groups.lacking(pool_name)).items():
        for _ in range(lacking):
            placement = Room(tx.state.cluster).placement(shape)
            if placement is None:
                _clear_way(tx, shape)
                break
            make(tx, plan_group(tx, pool_name, shape, placement, reserved=True))


def _clear_way(tx: Transaction, shape: GroupShape) -> None:
    """Remove idle groups where that makes room for a reserved one, unless those that end already do."""
    table, room = tx.state.groups, Room(tx.state.cluster)
    for group_id in table.ending:
        release(room, table.by_id[group_id])
    removal = without_idle(room, shape, table.idle())
    for group in () if removal is None else removal[1]:
        end_group(tx, group)


def _fill(tx: Transaction, pool_name: str, spec: GroupsSpec) -> None:
    state = tx.state
    shape = _target_shape(state, spec, pool_name)
    target = state.ledger.accounts[pool_name].spec.target_agents
    while (
        state.groups.count(pool_name) < target
        and state.groups.dynamic_count(pool_name) < spec.max_dynamic
    ):
        placement = Room(state.cluster).placement(shape)
        if placement is None:
            return
        make(tx, plan_group(tx, pool_name, shape, placement))


def _target_shape(state: MeshState, spec: GroupsSpec, pool_name: str) -> GroupShape:
    return dynamic_shape(spec, (state.ledger.accounts[pool_name].spec.default_agent(),))
