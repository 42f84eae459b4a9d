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
from schedulemesh.engine.placement.bundles import NoSpot, Room, Spot, on_one_node
from schedulemesh.engine.placement.minimise import minimise, release_until
from schedulemesh.engine.state.groups import Group, GroupPhase, dynamic_shape
from schedulemesh.engine.state.mesh_state import MeshState


class Wish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Home(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group for a newcomer: one that is there, or one to be made."""

    #: "reserved", "reused", "created" or "preempted".
    path: str
    group: Group | None = None
    #: Whether that one is being made still.
    waits: bool = False
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
    state: MeshState,
    pool_name: str,
    spec: GroupsSpec,
    bundles: tuple[Resources, ...],
    priority: float,
    labels: Labels,
) -> Wish:
    """What a task of this priority and these labels asks for."""
    closest = best_reserved(state.groups.reserved_shapes(pool_name), bundles)
    may_reserved = entitled(spec, priority, labels)
    return Wish(
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


def find_home(state: MeshState, wish: Wish, *, waits: bool = False) -> Home | NoHome:
    """A group that is free or can be made, or why there is none. ``waits``: others leave before that."""
    found = _free_group(state, wish)
    if found is not None:
        return found
    may_make = wish.spec.dynamic and wish.spec.max_dynamic >= 1
    if may_make and excess(state, wish) <= 0:
        spot = Room(state.cluster, waits=waits).spot(wish.shape)
        if spot is not None:
            return Home(path="created", spot=spot)
    spare = _spare_group(state, wish)
    if spare is not None:
        return Home(path="reserved", group=spare)
    if not may_make:
        return NoHome(limit=True)
    return _in_place_of_idle(state, wish)


def _spare_group(state: MeshState, wish: Wish) -> Group | None:
    """A free reserved group for one who is just below those who are entitled."""
    if wish.spare is None:
        return None
    groups = state.groups.free_of(wish.pool_name, reserved=True, shape=wish.spare)
    found = next((group for group in groups if _open(state, group)), None)
    return None if found is None or _somebody_waits(state, wish.pool_name) else found


def suits(state: MeshState, wish: Wish, group: Group) -> bool:
    """Whether the newcomer may have this group of its pool once nobody lives in it."""
    kind = wish.reserved if group.reserved else wish.shape
    return group.pool_name == wish.pool_name and group.shape == kind and _open(state, group)


def _free_group(state: MeshState, wish: Wish) -> Home | None:
    """One that nobody uses; else one that is being made already, before another is."""
    book = state.groups
    kinds = (("reserved", True, wish.reserved), ("reused", False, wish.shape))
    for groups_of, waits in ((book.free_of, False), (book.coming_of, True)):
        for path, reserved, shape in kinds:
            if shape is None:
                continue
            for group in groups_of(wish.pool_name, reserved=reserved, shape=shape):
                if _open(state, group):
                    how = "created" if waits and not reserved else path
                    return Home(path=how, group=group, waits=waits)
    return None


def _open(state: MeshState, group: Group) -> bool:
    """Whether all its nodes take new agents."""
    nodes = state.cluster.nodes
    return all(n in nodes and not nodes[n].cordoned for n in group.node_ids)


def _in_place_of_idle(state: MeshState, wish: Wish) -> Home | NoHome:
    """A new group where groups that nobody uses stand now."""
    too_many = excess(state, wish)
    idle = state.groups.idle()
    if state.groups.idle_count(wish.pool_name) < too_many:
        return NoHome(limit=True, could_ever=_could_ever(state, wish))
    found = without_idle(
        Room(state.cluster, waits=True), wish.shape, idle, wish.pool_name, too_many
    )
    if isinstance(found, NoSpot):
        return NoHome(limit=too_many > 0, no_spot=found, could_ever=_could_ever(state, wish))
    spot, leaving = found
    return Home(path="created", spot=spot, leaving=leaving)


def excess(state: MeshState, wish: Wish) -> int:
    """How many dynamic groups of the pool must go before there may be one more; 0 or less: none."""
    return state.groups.dynamic_count(wish.pool_name) - wish.spec.max_dynamic + 1


def idle_for_node(state: MeshState, need: Resources) -> tuple[Spot, tuple[Group, ...]] | None:
    """Where an agent without a group goes once idle groups have left, and which; None: nowhere."""
    idle = state.groups.idle()
    if not idle:
        return None
    found = without_idle(Room(state.cluster, waits=True), GroupShape(bundles=(need,)), idle)
    return None if isinstance(found, NoSpot) or not found[1] else found


def without_idle(
    room: Room,
    shape: GroupShape,
    idle: Sequence[Group],
    own: str = "",
    too_many: int = 0,
) -> tuple[Spot, tuple[Group, ...]] | NoSpot:
    """Where a group of this shape goes once the fewest of ``idle``, the first ones first, have left: the
    spot, and who leaves. At least ``too_many`` of them are of the pool ``own``, which has as many idle ones.
    """
    trial = _WithoutIdle(room, shape, own, too_many)
    found = release_until(trial, idle, trial.enough)
    if found is None:
        told = room.place(shape)
        return told if isinstance(told, NoSpot) else NoSpot(bundle=0)
    leaving = minimise(trial, found, trial.enough)
    spot = trial.find()
    return NoSpot(bundle=0) if spot is None else (spot, tuple(leaving))


class _WithoutIdle:
    """Room for a group, and its pool's limit, if some groups that nobody uses were gone."""

    def __init__(self, room: Room, shape: GroupShape, own: str, too_many: int) -> None:
        #: Where the group goes with nothing released.
        self._first = room.spot(shape)
        #: Where it goes now; None: nowhere, or that is to be looked at again.
        self._spot = self._first
        self._room = room
        self._shape = shape
        self._own = own
        self._too_many = too_many
        #: Nodes on which something was released: without that there is no spot.
        self._changed: set[str] = set()

    def release(self, group: Group) -> None:
        """See Trial."""
        release(self._room, group)
        self._too_many -= group.pool_name == self._own
        self._changed.update(group.node_ids)

    def take_back(self, group: Group) -> None:
        """See Trial."""
        release(self._room, group, -1)
        self._too_many += group.pool_name == self._own
        if self._spot is not None and not set(group.node_ids).isdisjoint(self._spot.node_ids):
            self._spot = self._first

    def enough(self) -> bool:
        """Whether there is a spot, and as many of the pool's own are gone as must be."""
        return self._too_many <= 0 and self.find() is not None

    def find(self) -> Spot | None:
        """Where the group goes as things are tried now."""
        if self._spot is None:
            only = self._changed if on_one_node(self._shape) else None
            self._spot = self._room.spot(self._shape, only)
        return self._spot


def release(room: Room, group: Group, sign: int = 1) -> None:
    """Try the group gone (-1: there after all)."""
    for i, node_id in enumerate(group.node_ids):
        room.release(node_id, group.key(i), sign)


def lives_alone(group: Group, agent_name: str) -> bool:
    """Whether the agent lives there, and nobody else was promised the group or its room."""
    lives = group.agent == agent_name and group.phase is GroupPhase.READY
    return lives and group.promised_to is None and group.leaves_for is None


def goes_along(group: Group, agent_name: str) -> bool:
    """Whether the group may be removed with its agent."""
    return not group.reserved and lives_alone(group, agent_name)


def _could_ever(state: MeshState, wish: Wish) -> bool:
    """Whether the newcomer could ever have a group: a reserved one, or a new one on empty nodes."""
    if wish.reserved is not None or wish.spare is not None or not state.nodes_known:
        return True
    return Room(state.cluster, total=True).spot(wish.shape) is not None


def _size(shape: GroupShape) -> tuple[int, int, int, int]:
    total = shape.total
    return (total.gpu, total.cpu, total.memory, sum(units for _, units in total.custom))
