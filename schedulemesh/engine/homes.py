"""Which placement group a newcomer gets where nobody has to leave for it.

In this order: a free reserved group of the closest spec, if the newcomer is entitled; a free dynamic one of
its own shape; a new dynamic one, below the pool's limit and where the nodes have room. Groups that stand
idle make way for a new one, the longest idle first, and no more of them than it needs.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.pg_pool import Group, best_reserved, dynamic_shape, entitled
from schedulemesh.engine.placing import NoSpot, Room, Spot
from schedulemesh.engine.state import MeshState


class Wish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a newcomer asks of its pool's groups."""

    pool_name: str
    spec: GroupsSpec
    #: What a group made for it would be.
    shape: GroupShape
    #: The reserved shape that it may have; None: it is not entitled, or none holds it.
    reserved: GroupShape | None


class Home(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group for a newcomer: one that is there, or one to be made."""

    #: "reserved", "reused", "created" or "preempted".
    path: str
    group: Group | None = None
    #: Where a new one goes.
    spot: Spot | None = None
    #: Groups that are removed for it.
    leaving: tuple[Group, ...] = ()


class NoHome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why no group is to be had without an eviction."""

    #: Whether the pool may not make more dynamic groups.
    limit: bool = False
    #: Why no node takes a new one; None: that was not asked.
    no_spot: NoSpot | None = None
    #: Whether the nodes, wholly free, would have room.
    could_ever: bool = True


def wish_of(
    pool_name: str,
    spec: GroupsSpec,
    bundles: tuple[Resources, ...],
    priority: float,
    labels: Labels,
) -> Wish:
    """What a task of this priority and these labels asks for."""
    may_reserved = entitled(spec, priority, labels)
    return Wish(
        pool_name=pool_name,
        spec=spec,
        shape=dynamic_shape(spec, bundles),
        reserved=best_reserved(spec, bundles) if may_reserved else None,
    )


def find_home(state: MeshState, wish: Wish) -> Home | NoHome:
    """A group that is free or can be made, or why there is none."""
    found = _free_group(state, wish)
    if found is not None:
        return found
    if not wish.spec.dynamic or wish.spec.max_dynamic < 1:
        return NoHome(limit=True, could_ever=wish.reserved is not None)
    at_limit = state.groups.dynamic_count(wish.pool_name) >= wish.spec.max_dynamic
    if not at_limit:
        spot = Room(state.cluster).place(wish.shape)
        if isinstance(spot, Spot):
            return Home(path="created", spot=spot)
    return _in_place_of_idle(state, wish, at_limit=at_limit)


def suits(state: MeshState, wish: Wish, group: Group) -> bool:
    """Whether the newcomer may have this group of its pool once nobody lives in it."""
    kind = wish.reserved if group.reserved else wish.shape
    return group.pool_name == wish.pool_name and group.shape == kind and _open(state, group)


def _free_group(state: MeshState, wish: Wish) -> Home | None:
    kinds = (("reserved", True, wish.reserved), ("reused", False, wish.shape))
    for path, reserved, shape in kinds:
        if shape is None:
            continue
        for group in state.groups.free_of(wish.pool_name, reserved=reserved, shape=shape):
            if _open(state, group):
                return Home(path=path, group=group)
    return None


def _open(state: MeshState, group: Group) -> bool:
    """Whether all its nodes take new agents."""
    nodes = state.cluster.nodes
    return all(n in nodes and not nodes[n].cordoned for n in group.node_ids)


def _in_place_of_idle(state: MeshState, wish: Wish, *, at_limit: bool) -> Home | NoHome:
    """A new group where groups that nobody uses stand now."""
    idle = state.groups.idle()
    own = [group for group in idle if group.pool_name == wish.pool_name]
    needed = own[:1] if at_limit else []
    if at_limit and not own:
        return NoHome(limit=True, could_ever=_could_ever(state, wish))
    others = [group for group in idle if group not in needed]
    found = room_without(state, wish.shape, needed, others)
    if isinstance(found, NoSpot):
        return NoHome(limit=at_limit, no_spot=found, could_ever=_could_ever(state, wish))
    spot, leaving = found
    return Home(path="created", spot=spot, leaving=leaving)


def idle_for_node(state: MeshState, need: Resources) -> tuple[Spot, tuple[Group, ...]] | None:
    """Where an agent without a group goes once idle groups have left, and which; None: nowhere."""
    idle = state.groups.idle()
    if not idle:
        return None
    found = room_without(state, GroupShape(bundles=(need,)), (), idle)
    return None if isinstance(found, NoSpot) or not found[1] else found


def room_without(
    state: MeshState, shape: GroupShape, gone: Iterable[Group], maybe: Iterable[Group]
) -> tuple[Spot, tuple[Group, ...]] | NoSpot:
    """Where a group of this shape goes once ``gone`` and the fewest of ``maybe``, the first ones first, have
    left: the spot, and who leaves.
    """
    room = Room(state.cluster)
    leaving = list(gone)
    for group in leaving:
        _release(room, group)
    spot = room.place(shape)
    tried: list[Group] = []
    for group in maybe:
        if isinstance(spot, Spot):
            break
        _release(room, group)
        tried.append(group)
        spot = room.place(shape)
    if isinstance(spot, NoSpot):
        return spot
    for group in tuple(tried[:-1]):
        _release(room, group, -1)
        without = room.place(shape)
        if isinstance(without, Spot):
            spot = without
            tried.remove(group)
        else:
            _release(room, group)
    return spot, (*leaving, *tried)


def _release(room: Room, group: Group, sign: int = 1) -> None:
    for i, node_id in enumerate(group.node_ids):
        room.release(node_id, group.key(i), sign)


def _could_ever(state: MeshState, wish: Wish) -> bool:
    """Whether the newcomer could ever have a group: a reserved one, or a new one on empty nodes."""
    if wish.reserved is not None or not state.nodes_known:
        return True
    return isinstance(Room(state.cluster, total=True).place(wish.shape), Spot)
