"""Which placement group an incoming task gets without an eviction.

The first of these that there is:

1. a free reserved group of the closest shape, if the task is entitled to reserved groups;
2. a free dynamic group of the task's own shape;
3. a group of one of these two kinds that is being created and has no agent yet;
4. a new dynamic group, if the pool is below its limit and the nodes have room;
5. a free reserved group, if the task is just below those that are entitled and nobody of the pool waits;
6. a new dynamic group in place of idle ones: the longest idle are removed first, and no more than necessary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from schedulemesh.domain.labels import Labels, matches
from schedulemesh.domain.node_labels import NodeLabels, selects
from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.topology import Topology
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.minimise import minimise, release_until
from schedulemesh.engine.placement.placers import BundlePlacement, NoPlacement
from schedulemesh.engine.placement.reserved_room import could_hold
from schedulemesh.engine.placement.scenario import (
    Demand,
    Removal,
    Scenario,
    bundle_allocations,
)
from schedulemesh.engine.state.agents import Waiting
from schedulemesh.engine.state.groups import Group, GroupPhase, dynamic_shape
from schedulemesh.engine.state.mesh_state import MeshState

#: How groups are kept for the gangs and leases of a pool that keeps none: each is created for one of them and
#: removed with it, and quota alone limits their number. So are the claims of jobs in every pool.
FOR_GANGS = GroupsSpec(max_dynamic=sys.maxsize, reuse=False, strategy="PACK")

ItemT = TypeVar("ItemT", bound=Group | Removal)


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an incoming task asks of its pool's groups."""

    pool_name: str
    spec: GroupsSpec
    #: The shape of a group that is created for it.
    shape: GroupShape
    #: The reserved shape that it may have; None: it is not entitled, or none is large enough.
    reserved: GroupShape | None
    #: The reserved shape that it may have while a group of that shape is free and no entitled task waits:
    #: set where its priority is just below that of entitled tasks.
    spare: GroupShape | None = None
    #: The reserved shape that it may have if its priority entitles it; None: none is large enough.
    closest: GroupShape | None = None
    #: The labels that the task asks for itself; the nodes of any group that it gets must have them.
    node_labels: NodeLabels = ()


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group for an incoming task: an existing one, or one to be created."""

    #: "reserved", "reused", "created" or "preempted".
    path: str
    group: Group | None = None
    #: Whether that one is still being created.
    waits: bool = False
    #: The placement of a new one.
    placement: BundlePlacement | None = None
    #: Groups that are removed for it.
    leaving: tuple[Group, ...] = ()


class NoAssignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why there is no group without an eviction."""

    #: Whether the pool has as many dynamic groups as it may have.
    limit: bool = False
    #: Whether the nodes have no room for a new one (see ``no_placement``); False: that was not examined.
    no_room: bool = False
    #: Whether the nodes would have room if they were wholly free.
    could_ever: bool = True


def group_request_of(
    state: MeshState,
    pool_name: str,
    spec: GroupsSpec,
    bundles: tuple[Resources, ...],
    priority: float,
    labels: Labels,
    own_group: GangPayload | LeasePayload | JobPayload | None = None,
    *,
    virtual: bool = False,
    node_labels: NodeLabels = (),
    topology: Topology | None = None,
) -> GroupRequest:
    """What a task of this priority and with these labels asks for. ``own_group``: how a gang, lease or job is
    placed; ``node_labels``: on nodes with which labels; ``topology``: how close together.
    """
    shape = dynamic_shape(
        spec, bundles, own_group, virtual=virtual, node_labels=node_labels, topology=topology
    )
    reserved = state.groups.reserved_shapes(pool_name)
    closest = best_reserved(
        reserved if own_group is None else [r for r in reserved if _places_alike(r, shape)], bundles
    )
    may_reserved = entitled(spec, priority, labels)
    if virtual:
        closest = None
    return GroupRequest(
        pool_name=pool_name,
        spec=spec,
        shape=shape,
        reserved=closest if may_reserved else None,
        spare=closest if priority == spec.entitled_above and not may_reserved else None,
        closest=closest,
        node_labels=node_labels,
    )


def _places_alike(reserved: GroupShape, shape: GroupShape) -> bool:
    """Whether a reserved group is placed as a gang or a lease asks for."""
    if reserved.parts != shape.parts or reserved.topology != shape.topology:
        return False
    return (reserved.strategy, reserved.same_label) == (shape.strategy, shape.same_label)


def _somebody_waits(state: MeshState, pool_name: str) -> bool:
    """Whether an agent of the pool waits for victims to end."""
    return any(isinstance(state.agents[name].phase, Waiting) for name in state.agents_of[pool_name])


def best_reserved(
    shapes: Iterable[GroupShape], bundles: tuple[Resources, ...]
) -> GroupShape | None:
    """Of these reserved shapes the smallest that holds the bundles; None: none does.

    A task may have no larger one: a small task in a large group would block what that is reserved for.
    """
    holding = [shape for shape in shapes if shape.holds(bundles)]
    return min(holding, key=_size, default=None)


def entitled(spec: GroupsSpec, priority: float, labels: Labels) -> bool:
    """Whether a task of this priority and these labels may have reserved groups."""
    by_label = bool(spec.entitled_labels) and matches(spec.entitled_labels, labels)
    return priority > spec.entitled_above or by_label


def find_assignment(
    state: MeshState, group_request: GroupRequest, *, waits: bool = False
) -> Assignment | NoAssignment:
    """A group that is free or can be created, or why there is none. ``waits``: victims end before that."""
    free_group = _free_group(state, group_request)
    if free_group is not None:
        return free_group
    may_make = makes_groups(group_request.spec)
    if may_make and excess(state, group_request) <= 0:
        placement = Room(state.cluster, waits=waits).placement(group_request.shape)
        if placement is not None:
            return Assignment(path="created", placement=placement)
    spare = _spare_group(state, group_request)
    if spare is not None:
        return Assignment(path="reserved", group=spare)
    if not may_make:
        return NoAssignment(limit=True, could_ever=could_ever_have(state, group_request))
    return _in_place_of_idle(state, group_request)


def _spare_group(state: MeshState, group_request: GroupRequest) -> Group | None:
    """A free reserved group for a task just below those that are entitled."""
    if group_request.spare is None:
        return None
    groups = state.groups.free_of(group_request.pool_name, reserved=True, shape=group_request.spare)
    spare_group = next((group for group in groups if _open(state, group_request, group)), None)
    return (
        None
        if spare_group is None or _somebody_waits(state, group_request.pool_name)
        else spare_group
    )


def suits(state: MeshState, group_request: GroupRequest, group: Group) -> bool:
    """Whether the incoming task may have this group of its pool once that has no agent."""
    kind = group_request.reserved if group.reserved else group_request.shape
    return (
        group.pool_name == group_request.pool_name
        and group.shape == kind
        and _open(state, group_request, group)
    )


def _free_group(state: MeshState, group_request: GroupRequest) -> Assignment | None:
    """A group without an agent; else one that is being created already."""
    table = state.groups
    kinds = (("reserved", True, group_request.reserved), ("reused", False, group_request.shape))
    for groups_of, waits in ((table.free_of, False), (table.coming_of, True)):
        for path, reserved, shape in kinds:
            if shape is None:
                continue
            for group in groups_of(group_request.pool_name, reserved=reserved, shape=shape):
                if _open(state, group_request, group):
                    how = "created" if waits and not reserved else path
                    return Assignment(path=how, group=group, waits=waits)
    return None


def _open(state: MeshState, group_request: GroupRequest, group: Group) -> bool:
    """Whether all its nodes accept new agents, and have the labels that the task asks for."""
    nodes = state.cluster.nodes
    return all(
        n in nodes and not nodes[n].cordoned and selects(group_request.node_labels, nodes[n].labels)
        for n in group.node_ids
    )


def _in_place_of_idle(state: MeshState, group_request: GroupRequest) -> Assignment | NoAssignment:
    """A new group in place of idle ones."""
    too_many = excess(state, group_request)
    idle = state.groups.idle()
    if state.groups.idle_count(group_request.pool_name) < too_many:
        return NoAssignment(limit=True, could_ever=could_ever_have(state, group_request))
    if not idle:
        return NoAssignment(no_room=True, could_ever=could_ever_have(state, group_request))
    removal = without_idle(
        Room(state.cluster, waits=True),
        group_request.shape,
        idle,
        group_request.pool_name,
        too_many,
    )
    if removal is None:
        return NoAssignment(
            limit=too_many > 0, no_room=True, could_ever=could_ever_have(state, group_request)
        )
    placement, leaving = removal
    return Assignment(path="created", placement=placement, leaving=leaving)


def no_placement(state: MeshState, shape: GroupShape) -> NoPlacement:
    """Why the nodes have no room for a new group, not even without the idle ones."""
    room = Room(state.cluster, waits=True)
    for group in state.groups.idle():
        release(room, group)
    placement = room.place(shape)
    return placement if isinstance(placement, NoPlacement) else NoPlacement(bundle=0)


def excess(state: MeshState, group_request: GroupRequest) -> int:
    """How many dynamic groups of the pool must be removed before one more is allowed; 0 or less: none."""
    return state.groups.dynamic_count(group_request.pool_name) - group_request.spec.max_dynamic + 1


def idle_for_node(
    state: MeshState, shape: GroupShape
) -> tuple[BundlePlacement, tuple[Group, ...]] | None:
    """The placement of an agent without a group once idle groups are removed, and those; None: nowhere."""
    idle = state.groups.idle()
    if not idle:
        return None
    removal = without_idle(Room(state.cluster, waits=True), shape, idle)
    return None if removal is None or not removal[1] else removal


def without_idle(
    room: Room,
    shape: GroupShape,
    idle: Sequence[ItemT],
    pool_name: str = "",
    too_many: int = 0,
) -> tuple[BundlePlacement, tuple[ItemT, ...]] | None:
    """The placement of a group of this shape once some of ``idle``, the first ones first and no more than
    necessary, are removed; and these. None: not even all are enough. At least ``too_many`` of them are of the
    pool ``pool_name``. ``idle``: groups that nobody uses, and what is leaving anyway.
    """
    demand = Demand(shape=shape, pool_name=pool_name, too_many_groups=too_many)
    scenario = Scenario(room, demand)
    removable = release_until(scenario, idle, scenario.enough)
    if removable is None:
        return None
    leaving = minimise(scenario, removable, scenario.enough, scenario.kind)
    placement = scenario.placement()
    return None if placement is None else (placement, tuple(leaving))


def release(room: Room, group: Group) -> None:
    """Count the group as removed."""
    for node_id, key in bundle_allocations(group):
        room.release(node_id, key)


def is_held_only_by(group: Group, agent_name: str) -> bool:
    """Whether the group is the agent's, and neither it nor its room is promised to another agent."""
    runs_here = group.agent == agent_name and group.phase is GroupPhase.READY
    return runs_here and group.promised_to is None and group.leaves_for is None


def is_removed_with(group: Group, agent_name: str) -> bool:
    """Whether the group is removed when its agent is evicted to make room."""
    return not group.reserved and is_held_only_by(group, agent_name)


def could_ever_have(state: MeshState, group_request: GroupRequest) -> bool:
    """Whether the incoming task could ever have a group: a reserved one, or a new one if nothing ran; or one
    that is there, where its pool makes no new ones any more.
    """
    if not may_have_groups(group_request):
        table = state.groups
        groups = map(table.by_id.__getitem__, table.of_pool.get(group_request.pool_name, ()))
        return any(suits(state, group_request, group) for group in groups)
    if not state.nodes_known:
        return True
    # A task that is entitled to no reserved group yet may get another priority.
    reserved = group_request.closest
    if reserved is not None:
        labels = (*reserved.node_labels, *group_request.node_labels)
        shape = msgspec.structs.replace(reserved, node_labels=labels)
        if _is_there(state, group_request, reserved) or could_hold(state, shape):
            return True
    may_make = makes_groups(group_request.spec)
    return (may_make or reserved is None) and could_hold(state, group_request.shape)


def _is_there(state: MeshState, group_request: GroupRequest, reserved: GroupShape) -> bool:
    """Whether a reserved group of this shape is on nodes with the labels that the task asks for."""
    nodes, table, labels = state.cluster.nodes, state.groups, group_request.node_labels
    groups = map(table.by_id.__getitem__, table.of_pool.get(group_request.pool_name, ()))
    return any(
        group.reserved
        and group.shape == reserved
        and group.phase is not GroupPhase.ENDING
        and all(n in nodes and selects(labels, nodes[n].labels) for n in group.node_ids)
        for group in groups
    )


def may_have_groups(group_request: GroupRequest) -> bool:
    """Whether a pool as it is defined keeps reserved groups, or creates some for its tasks."""
    return bool(group_request.spec.reserved) or makes_groups(group_request.spec)


def makes_groups(spec: GroupsSpec) -> bool:
    """Whether a pool creates groups for its tasks."""
    return spec.dynamic and spec.max_dynamic >= 1


def _size(shape: GroupShape) -> tuple[int, int, int, int]:
    total = shape.total
    return (total.gpu, total.cpu, total.memory, sum(units for _, units in total.custom))
