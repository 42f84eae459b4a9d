"""Which placement group a newcomer gets where nobody has to leave for it.

In this order: a free reserved group of the closest spec, if the newcomer is entitled; a free dynamic one of
its own shape; one of either that is being made and has no agent yet; a new dynamic one, below the pool's
limit and where the nodes have room. Groups that stand idle make way for a new one, the longest idle first,
and no more of them than it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.labels import Labels, matches
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.placement.bundles import BundlePlacement, NoPlacement, Room
from schedulemesh.engine.placement.minimise import minimise, release_until
from schedulemesh.engine.placement.scenario import Demand, Scenario, bundle_allocations
from schedulemesh.engine.state.groups import Group, GroupPhase, dynamic_shape
from schedulemesh.engine.state.mesh_state import MeshState


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a newcomer asks of its pool's groups."""

    pool_name: str
    spec: GroupsSpec
    #: What a group made for it would be.
    shape: GroupShape
    #: The reserved shape that it may have; None: it is not entitled, or none holds it.
    reserved: GroupShape | None
    #: The reserved shape that it may have while a group of it is free and nobody who is entitled waits: the
    #: newcomer is just below those who are.
    spare: GroupShape | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group for a newcomer: one that is there, or one to be made."""

    #: "reserved", "reused", "created" or "preempted".
    path: str
    group: Group | None = None
    #: Whether that one is being made still.
    waits: bool = False
    #: Where a new one goes.
    placement: BundlePlacement | None = None
    #: Groups that are removed for it.
    leaving: tuple[Group, ...] = ()


class NoAssignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why no group is to be had without an eviction."""

    #: Whether the pool may not make more dynamic groups.
    limit: bool = False
    #: Why no node takes a new one; None: that was not asked.
    no_placement: NoPlacement | None = None
    #: Whether the nodes, wholly free, would have room.
    could_ever: bool = True


def group_request_of(
    state: MeshState,
    pool_name: str,
    spec: GroupsSpec,
    bundles: tuple[Resources, ...],
    priority: float,
    labels: Labels,
) -> GroupRequest:
    """What a task of this priority and these labels asks for."""
    closest = best_reserved(state.groups.reserved_shapes(pool_name), bundles)
    may_reserved = entitled(spec, priority, labels)
    return GroupRequest(
        pool_name=pool_name,
        spec=spec,
        shape=dynamic_shape(spec, bundles),
        reserved=closest if may_reserved else None,
        spare=closest if priority == spec.entitled_above and not may_reserved else None,
    )


def _somebody_waits(state: MeshState, pool_name: str) -> bool:
    """Whether an agent of the pool waits for others to leave."""
    return any(
        state.agents[name].phase is AgentPhase.WAITING for name in state.agents_of[pool_name]
    )


def best_reserved(
    shapes: Iterable[GroupShape], bundles: tuple[Resources, ...]
) -> GroupShape | None:
    """Of these reserved shapes the closest fit for the bundles; None: none holds them.

    Only that one is theirs: a small task in a big group would block what the big one is kept for.
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
    """A group that is free or can be made, or why there is none. ``waits``: others leave before that."""
    found = _free_group(state, group_request)
    if found is not None:
        return found
    may_make = group_request.spec.dynamic and group_request.spec.max_dynamic >= 1
    if may_make and excess(state, group_request) <= 0:
        placement = Room(state.cluster, waits=waits).placement(group_request.shape)
        if placement is not None:
            return Assignment(path="created", placement=placement)
    spare = _spare_group(state, group_request)
    if spare is not None:
        return Assignment(path="reserved", group=spare)
    if not may_make:
        return NoAssignment(limit=True)
    return _in_place_of_idle(state, group_request)


def _spare_group(state: MeshState, group_request: GroupRequest) -> Group | None:
    """A free reserved group for one who is just below those who are entitled."""
    if group_request.spare is None:
        return None
    groups = state.groups.free_of(group_request.pool_name, reserved=True, shape=group_request.spare)
    found = next((group for group in groups if _open(state, group)), None)
    return None if found is None or _somebody_waits(state, group_request.pool_name) else found


def suits(state: MeshState, group_request: GroupRequest, group: Group) -> bool:
    """Whether the newcomer may have this group of its pool once nobody lives in it."""
    kind = group_request.reserved if group.reserved else group_request.shape
    return (
        group.pool_name == group_request.pool_name and group.shape == kind and _open(state, group)
    )


def _free_group(state: MeshState, group_request: GroupRequest) -> Assignment | None:
    """One that nobody uses; else one that is being made already, before another is."""
    book = state.groups
    kinds = (("reserved", True, group_request.reserved), ("reused", False, group_request.shape))
    for groups_of, waits in ((book.free_of, False), (book.coming_of, True)):
        for path, reserved, shape in kinds:
            if shape is None:
                continue
            for group in groups_of(group_request.pool_name, reserved=reserved, shape=shape):
                if _open(state, group):
                    how = "created" if waits and not reserved else path
                    return Assignment(path=how, group=group, waits=waits)
    return None


def _open(state: MeshState, group: Group) -> bool:
    """Whether all its nodes take new agents."""
    nodes = state.cluster.nodes
    return all(n in nodes and not nodes[n].cordoned for n in group.node_ids)


def _in_place_of_idle(state: MeshState, group_request: GroupRequest) -> Assignment | NoAssignment:
    """A new group where groups that nobody uses stand now."""
    too_many = excess(state, group_request)
    idle = state.groups.idle()
    if state.groups.idle_count(group_request.pool_name) < too_many:
        return NoAssignment(limit=True, could_ever=_could_ever(state, group_request))
    found = without_idle(
        Room(state.cluster, waits=True),
        group_request.shape,
        idle,
        group_request.pool_name,
        too_many,
    )
    if isinstance(found, NoPlacement):
        return NoAssignment(
            limit=too_many > 0, no_placement=found, could_ever=_could_ever(state, group_request)
        )
    placement, leaving = found
    return Assignment(path="created", placement=placement, leaving=leaving)


def excess(state: MeshState, group_request: GroupRequest) -> int:
    """How many dynamic groups of the pool must go before there may be one more; 0 or less: none."""
    return state.groups.dynamic_count(group_request.pool_name) - group_request.spec.max_dynamic + 1


def idle_for_node(
    state: MeshState, need: Resources
) -> tuple[BundlePlacement, tuple[Group, ...]] | None:
    """Where an agent without a group goes once idle groups have left, and which; None: nowhere."""
    idle = state.groups.idle()
    if not idle:
        return None
    found = without_idle(Room(state.cluster, waits=True), GroupShape(bundles=(need,)), idle)
    return None if isinstance(found, NoPlacement) or not found[1] else found


def without_idle(
    room: Room,
    shape: GroupShape,
    idle: Sequence[Group],
    own: str = "",
    too_many: int = 0,
) -> tuple[BundlePlacement, tuple[Group, ...]] | NoPlacement:
    """Where a group of this shape goes once the fewest of ``idle``, the first ones first, have left: the
    placement, and who leaves. At least ``too_many`` of them are of the pool ``own``, which has as many
    idle ones.
    """
    demand = Demand(shape=shape, pool_name=own, too_many_groups=too_many)
    scenario = Scenario(room, demand)
    found = release_until(scenario, idle, scenario.enough)
    if found is None:
        reason = room.place(shape)
        return reason if isinstance(reason, NoPlacement) else NoPlacement(bundle=0)
    leaving = minimise(scenario, found, scenario.enough)
    placement = scenario.placement()
    return NoPlacement(bundle=0) if placement is None else (placement, tuple(leaving))


def release(room: Room, group: Group) -> None:
    """Try the group gone."""
    for node_id, key in bundle_allocations(group):
        room.release(node_id, key)


def lives_alone(group: Group, agent_name: str) -> bool:
    """Whether the agent lives there, and nobody else was promised the group or its room."""
    lives = group.agent == agent_name and group.phase is GroupPhase.READY
    return lives and group.promised_to is None and group.leaves_for is None


def goes_along(group: Group, agent_name: str) -> bool:
    """Whether the group may be removed with its agent."""
    return not group.reserved and lives_alone(group, agent_name)


def _could_ever(state: MeshState, group_request: GroupRequest) -> bool:
    """Whether the newcomer could ever have a group: a reserved one, or a new one on empty nodes."""
    if (
        group_request.reserved is not None
        or group_request.spare is not None
        or not state.nodes_known
    ):
        return True
    return Room(state.cluster, total=True).placement(group_request.shape) is not None


def _size(shape: GroupShape) -> tuple[int, int, int, int]:
    total = shape.total
    return (total.gpu, total.cpu, total.memory, sum(units for _, units in total.custom))
