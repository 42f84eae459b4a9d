"""Victims whose leaving makes room on the nodes, where placement groups stand on them too.

A victim that lives in a dynamic group of its own takes that along. Groups that nobody uses cost nobody's
work: they count as gone while victims are sought, and of them only those that are needed go in the end.

First one victim that is enough, highest score first. Only if there is none: site by site candidates in
order until there is room, others for quota, then everyone who turns out not to be needed is given back,
lowest score first. A site is a node for what goes on one node, else all nodes together. Sites are compared
as nodes are in ``victims``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources, least, most, sum_of
from schedulemesh.engine.placement.bundles import BundlePlacement, NoPlacement, Room, on_one_node
from schedulemesh.engine.placement.group_choice import goes_along, without_idle
from schedulemesh.engine.placement.minimise import minimise, release_until
from schedulemesh.engine.preemption.group_scenario import (
    GroupScenario,
    freed_by,
    frees_own,
    group_of,
    room_freed,
)
from schedulemesh.engine.preemption.search import Bound, Search, VictimAgent, order_of, place_of
from schedulemesh.engine.state.groups import MARK, Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node

_FirstT = TypeVar("_FirstT")


class Cleared(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Room once these have left."""

    units: tuple[VictimAgent, ...]
    placement: BundlePlacement
    #: The groups that leave with them, and those that nobody uses and that leave too.
    leaving: tuple[Group, ...]


class _Site(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where room is to be made: a node, or (id empty) all nodes together."""

    node_id: str
    #: The candidates there, in the order of victims.
    units: list[VictimAgent]
    #: What must become usable there at least.
    lack: Resources


class RoomSearch:
    """One search for victims who make room for ``shape``. ``too_many`` dynamic groups of the pool ``own``
    must go as well; ``nodes``: victims are sought on these only.
    """

    def __init__(
        self,
        search: Search,
        shape: GroupShape,
        *,
        own: str = "",
        too_many: int = 0,
        nodes: Collection[str] | None = None,
    ) -> None:
        self._search = search
        self._shape = shape
        self._own = own
        self._too_many = too_many
        #: With nobody released; each attempt releases and takes back.
        self._scenario = GroupScenario(self._state, search.quota_scenario(), shape, own, too_many)
        self._room = self._scenario.room
        self._placement = self._scenario.placement
        self._lacking = self._scenario.lacking
        self._one_node = on_one_node(shape)
        self._sites = self._found(nodes)

    def one(self) -> Cleared | None:
        """The victim with the highest score that is enough."""
        if self._lacking > 1:
            return None
        short = self._search.short_quota
        if self._placement is not None and self._lacking <= 0:
            first = self._search.first_for_quota()
            return None if first is None else self._cleared((first,))
        likely = {
            unit.agent.spec.name: unit
            for site in self._sites
            for unit in site.units
            if short.fits(unit.agent.spec.resources) and site.lack.fits(self._hope(unit))
        }
        in_vain: set[frozenset[tuple[object, ...]]] = set()
        for unit in sorted(likely.values(), key=order_of):
            key = self._alike(unit)
            if key in in_vain:
                continue
            if self._enough_alone(unit):
                return self._cleared((unit,))
            in_vain.add(key)
        return None

    def several(self) -> Cleared | None:
        """The victims at the best site; sites that cannot be better are not worked out."""
        best: tuple[Bound, tuple[VictimAgent, ...]] | None = None
        bounds = [(bound, site) for site in self._sites if (bound := self._bound(site)) is not None]
        for bound, site in sorted(bounds, key=_first):
            if best is not None and best[0] <= bound:
                break
            kept = self._worked_out(site.units)
            if kept is None:
                continue
            place = place_of(kept, site.node_id)
            if best is None or place < best[0]:
                best = (place, kept)
        return None if best is None else self._cleared(best[1])

    @property
    def _state(self) -> MeshState:
        return self._search.state

    def _found(self, only: Collection[str] | None) -> list[_Site]:
        """The sites with their candidates, in the order of victims."""
        if self._placement is not None:
            return [
                _Site(node_id="", units=sorted(self._units_of_own(), key=order_of), lack=NOTHING)
            ]
        allowed = self._search.allowed()
        made: dict[str, VictimAgent | None] = {}
        units: dict[str, dict[str, VictimAgent]] = {}
        for node in self._nodes(only):
            site = units.setdefault(node.node_id if self._one_node else "", {})
            for name in self._living_on(node):
                if name not in made:
                    made[name] = self._search.unit_of(name, allowed)
                unit = made[name]
                if unit is not None:
                    site[name] = unit
        return [
            _Site(
                node_id=node_id,
                units=sorted(found.values(), key=order_of),
                lack=self._shape.total.beyond(self._usable(node_id)),
            )
            for node_id, found in units.items()
        ]

    def _nodes(self, only: Collection[str] | None) -> Iterator[Node]:
        """Where victims might make room."""
        need = self._shape.total if self._one_node else NOTHING
        for node in self._state.cluster.open_nodes():
            if (only is None or node.node_id in only) and need.fits(node.total):
                yield node

    def _usable(self, node_id: str) -> Resources:
        """What is free there; for all nodes together: on those that could take the least bundle."""
        if node_id:
            return self._room.free_on(node_id)
        smallest = least(self._shape.bundles)
        free = (self._room.free_on(node.node_id) for node in self._state.cluster.open_nodes())
        return sum_of(amounts for amounts in free if smallest.fits(amounts))

    def _hope(self, unit: VictimAgent) -> Resources:
        """No more than this becomes usable where it leaves."""
        frees = room_freed(self._state, unit)
        if self._one_node:
            return frees
        nodes = {node_id for node_id, _ in freed_by(self._state, unit)}
        return frees + sum_of(map(self._room.free_on, nodes))

    def _alike(self, unit: VictimAgent) -> frozenset[tuple[object, ...]]:
        """What its leaving does: units of which this is the same are enough, or none of them is."""
        nodes, group = self._state.cluster.nodes, group_of(self._state, unit)
        freed = []
        for node_id, key in freed_by(self._state, unit):
            mine = nodes[node_id].allocations.get(key) if node_id in nodes else None
            if mine is not None:
                freed.append(
                    (
                        node_id,
                        mine.held,
                        mine.devices,
                        mine.reported,
                        key in nodes[node_id].promised,
                    )
                )
        own = "" if group is None else group.pool_name
        return frozenset([*freed, (own, unit.agent.spec.resources)])

    def _bound(self, site: _Site) -> Bound | None:
        """No victims of the site come before this; None: there is no room even without all of them."""
        hopes = [(unit.top_priority, self._hope(unit)) for unit in site.units]
        freed, top = NOTHING, float("-inf")
        for priority, hope in sorted(hopes, key=_first):
            if site.lack.fits(freed):
                break
            freed, top = freed + hope, priority
        if not site.lack.fits(freed):
            return None
        biggest = dict(most(hope for _, hope in hopes).items())
        fewest = max((-(-units // biggest[kind]) for kind, units in site.lack.items()), default=0)
        if fewest < len(site.units):
            return (top, fewest, 0.0, "")
        return (top, fewest, sum(unit.lost_work for unit in site.units), site.node_id)

    def _living_on(self, node: Node) -> Iterator[str]:
        """The agents whose leaving frees something there."""
        groups = self._state.groups.by_id
        for key in node.allocations:
            if not key.startswith(MARK):
                yield key
                continue
            group = groups[key[len(MARK) :].rpartition("/")[0]]
            if group.agent is not None and goes_along(group, group.agent):
                yield group.agent

    def _units_of_own(self) -> Iterator[VictimAgent]:
        """The candidates in dynamic groups of the pool that has too many."""
        if self._lacking <= 0:
            return
        book, allowed = self._state.groups, self._search.allowed()
        for group in map(book.by_id.__getitem__, book.of_pool.get(self._own, ())):
            if group.agent is not None and goes_along(group, group.agent):
                unit = self._search.unit_of(group.agent, allowed)
                if unit is not None:
                    yield unit

    def _enough_alone(self, unit: VictimAgent) -> bool:
        self._scenario.release(unit)
        enough = self._scenario.enough()
        self._scenario.take_back(unit)
        return enough

    def _worked_out(self, units: Sequence[VictimAgent]) -> tuple[VictimAgent, ...] | None:
        """Candidates in order until the pool's limit, the nodes and the quota suffice, less those that turn
        out not to be needed; None: not even all of them are enough.
        """
        taken = self._for_limit(units)
        if taken is None:
            return None
        scenario = self._scenario
        released: list[VictimAgent] = []
        try:
            for unit in taken:
                scenario.release(unit)
                released.append(unit)
            names = {unit.agent.spec.name for unit in taken}
            rest = [unit for unit in units if unit.agent.spec.name not in names]
            more = release_until(scenario, rest, scenario.has_room)
            released += rest if more is None else more
            if more is None:
                return None
            for unit in self._search.filling_quota(scenario.quota, released):
                scenario.release(unit)
                released.append(unit)
            if scenario.quota.short_quota:
                return None
            released.sort(key=order_of, reverse=True)
            released = minimise(scenario, released, scenario.enough)
            return tuple(reversed(released))
        finally:
            for unit in released:
                scenario.take_back(unit)

    def _for_limit(self, units: Sequence[VictimAgent]) -> list[VictimAgent] | None:
        """As many of the pool's own as must leave for its limit: those of the site before others."""
        if self._lacking <= 0:
            return []
        others = sorted(self._units_of_own(), key=order_of)
        own = {
            u.agent.spec.name: u for u in (*units, *others) if frees_own(self._state, u, self._own)
        }
        return list(own.values())[: self._lacking] if len(own) >= self._lacking else None

    def _cleared(self, units: tuple[VictimAgent, ...]) -> Cleared | None:
        """With those of the groups that nobody uses that are needed."""
        room = Room(self._state.cluster, waits=True)
        for unit in units:
            for node_id, key in freed_by(self._state, unit):
                room.release(node_id, key)
        too_many = self._too_many - sum(frees_own(self._state, u, self._own) for u in units)
        idle = self._state.groups.idle()
        found = without_idle(room, self._shape, idle, self._own, too_many)
        if isinstance(found, NoPlacement):
            return None
        placement, unused = found
        along = [group for unit in units if (group := group_of(self._state, unit)) is not None]
        return Cleared(units=units, placement=placement, leaving=(*along, *unused))


def _first(entry: tuple[_FirstT, object]) -> _FirstT:
    return entry[0]
