"""Victims whose leaving makes room on the nodes, where placement groups stand on them too.

A victim that lives in a dynamic group of its own takes that along. Groups that nobody uses cost nobody's
work: they count as gone while victims are sought, and of them only those that are needed go in the end.

First one victim that is enough, highest score first. Only if there is none: site by site candidates in
order until there is room, others for quota, then everyone who turns out not to be needed is given back,
lowest score first. A site is a node for what goes on one node, else all nodes together. Sites are compared
as nodes are in ``victims``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources, least, most, sum_of
from schedulemesh.engine.placement.bundles import NoSpot, Room, Spot, on_one_node
from schedulemesh.engine.placement.group_choice import goes_along, release, without_idle
from schedulemesh.engine.preemption.scenario import Draft
from schedulemesh.engine.preemption.search import Bound, Search, Unit, place_of
from schedulemesh.engine.state.groups import MARK, Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node

_FirstT = TypeVar("_FirstT")


class Cleared(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Room once these have left."""

    units: tuple[Unit, ...]
    spot: Spot
    #: The groups that leave with them, and those that nobody uses and that leave too.
    leaving: tuple[Group, ...]


class _Site(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where room is to be made: a node, or (id empty) all nodes together."""

    node_id: str
    #: The candidates there, in the order of victims.
    units: list[Unit]
    #: What must become usable there at least.
    lack: Resources


class Clearing:
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
        self._idle = self._state.groups.idle()
        #: The nodes without the groups that nobody uses.
        self._room = Room(self._state.cluster, waits=True)
        for group in self._idle:
            release(self._room, group)
        self._spot = self._room.spot(shape)
        self._one_node = on_one_node(shape)
        #: How many groups of the pool only victims can rid it of.
        self._lacking = too_many - sum(group.pool_name == own for group in self._idle)
        self._sites = self._found(nodes)

    def one(self) -> Cleared | None:
        """The victim with the highest score that is enough."""
        if self._lacking > 1:
            return None
        short = self._search.short_quota
        if self._spot is not None and self._lacking <= 0:
            first = self._search.first_for_quota()
            return None if first is None else self._cleared((first,))
        likely = {
            unit.agent.spec.name: unit
            for site in self._sites
            for unit in site.units
            if short.fits(unit.agent.spec.resources) and site.lack.fits(self._hope(unit))
        }
        in_vain: set[frozenset[tuple[object, ...]]] = set()
        for unit in sorted(likely.values(), key=_place):
            key = self._alike(unit)
            if key in in_vain:
                continue
            if self._enough((unit,)):
                return self._cleared((unit,))
            in_vain.add(key)
        return None

    def several(self) -> Cleared | None:
        """The victims at the best site; sites that cannot be better are not worked out."""
        best: tuple[Bound, tuple[Unit, ...]] | None = None
        bounds = [(bound, site) for site in self._sites if (bound := self._bound(site)) is not None]
        for bound, site in sorted(bounds, key=_first):
            if best is not None and best[0] <= bound:
                break
            taken = self._taken(site.units)
            if taken is None:
                continue
            kept = self._needed(taken)
            place = place_of(kept, site.node_id)
            if best is None or place < best[0]:
                best = (place, kept)
        return None if best is None else self._cleared(best[1])

    @property
    def _state(self) -> MeshState:
        return self._search.state

    def _found(self, only: Collection[str] | None) -> list[_Site]:
        """The sites with their candidates, in the order of victims."""
        if self._spot is not None:
            return [_Site(node_id="", units=sorted(self._units_of_own(), key=_place), lack=NOTHING)]
        allowed = self._search.allowed()
        made: dict[str, Unit | None] = {}
        units: dict[str, dict[str, Unit]] = {}
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
                units=sorted(found.values(), key=_place),
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

    def _hope(self, unit: Unit) -> Resources:
        """No more than this becomes usable where it leaves."""
        group = self._group_of(unit)
        frees = unit.agent.spec.resources if group is None else group.shape.total
        if self._one_node:
            return frees
        nodes = {node_id for node_id, _ in self._frees(unit)}
        return frees + sum_of(map(self._room.free_on, nodes))

    def _alike(self, unit: Unit) -> frozenset[tuple[object, ...]]:
        """What its leaving does: units of which this is the same are enough, or none of them is."""
        nodes, group = self._state.cluster.nodes, self._group_of(unit)
        freed = []
        for node_id, key in self._frees(unit):
            mine = nodes[node_id].standing.get(key) if node_id in nodes else None
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
        for key in node.standing:
            if not key.startswith(MARK):
                yield key
                continue
            group = groups[key[len(MARK) :].rpartition("/")[0]]
            if group.agent is not None and goes_along(group, group.agent):
                yield group.agent

    def _units_of_own(self) -> Iterator[Unit]:
        """The candidates in dynamic groups of the pool that has too many."""
        if self._lacking <= 0:
            return
        book, allowed = self._state.groups, self._search.allowed()
        for group in map(book.by_id.__getitem__, book.of_pool.get(self._own, ())):
            if group.agent is not None and goes_along(group, group.agent):
                unit = self._search.unit_of(group.agent, allowed)
                if unit is not None:
                    yield unit

    def _taken(self, units: Sequence[Unit]) -> tuple[Unit, ...] | None:
        """Candidates in order until the pool's limit, the nodes and the quota suffice."""
        taken = self._for_limit(units)
        if taken is None:
            return None
        have = {unit.agent.spec.name for unit in taken}
        rest = [unit for unit in units if unit.agent.spec.name not in have]
        many = self._fewest(taken, rest)
        if many is None:
            return None
        taken += rest[:many]
        draft = self._quota_with(taken)
        return self._search.fill_quota(draft, tuple(taken)) if draft.short_quota else tuple(taken)

    def _fewest(self, taken: list[Unit], rest: Sequence[Unit]) -> int | None:
        """How many of the rest, in their order, must go besides for there to be room; None: all are too few.

        Tried with twice as many each time, because seldom more than a few must go.
        """
        few, many = 0, 0
        while not self._has_spot((*taken, *rest[:many])):
            if many >= len(rest):
                return None
            few, many = many + 1, min(len(rest), max(1, 2 * many))
        while few < many:
            middle = (few + many) // 2
            if self._has_spot((*taken, *rest[:middle])):
                many = middle
            else:
                few = middle + 1
        return many

    def _for_limit(self, units: Sequence[Unit]) -> list[Unit] | None:
        """As many of the pool's own as must leave for its limit: those of the site before others."""
        if self._lacking <= 0:
            return []
        others = sorted(self._units_of_own(), key=_place)
        own = {u.agent.spec.name: u for u in (*units, *others) if self._frees_own(u)}
        return list(own.values())[: self._lacking] if len(own) >= self._lacking else None

    def _needed(self, units: Iterable[Unit]) -> tuple[Unit, ...]:
        """The same without those that are not needed, lowest score first; tried in halves, because of many
        most may go.
        """
        kept = sorted(units, key=_place)
        parts = [kept[::-1]]
        while parts:
            part = parts.pop()
            names = {unit.agent.spec.name for unit in part}
            fewer = [unit for unit in kept if unit.agent.spec.name not in names]
            if self._enough(fewer):
                kept = fewer
            elif len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
        return tuple(kept)

    def _enough(self, units: Sequence[Unit]) -> bool:
        if sum(map(self._frees_own, units)) < self._lacking:
            return False
        return not self._quota_with(units).short_quota and self._has_spot(units)

    def _has_spot(self, units: Sequence[Unit]) -> bool:
        """Whether there is room once these have left."""
        if self._spot is not None:
            return True
        freed = [place for unit in units for place in self._frees(unit)]
        if not freed:
            return False
        for node_id, key in freed:
            self._room.release(node_id, key)
        only = {node_id for node_id, _ in freed} if self._one_node else None
        spot = self._room.spot(self._shape, only)
        for node_id, key in freed:
            self._room.release(node_id, key, -1)
        return spot is not None

    def _cleared(self, units: tuple[Unit, ...]) -> Cleared | None:
        """With those of the groups that nobody uses that are needed."""
        room = Room(self._state.cluster, waits=True)
        for unit in units:
            for node_id, key in self._frees(unit):
                room.release(node_id, key)
        too_many = self._too_many - sum(map(self._frees_own, units))
        found = without_idle(room, self._shape, self._idle, self._own, too_many)
        if isinstance(found, NoSpot):
            return None
        spot, idle = found
        taken_along = tuple(group for unit in units if (group := self._group_of(unit)) is not None)
        return Cleared(units=units, spot=spot, leaving=(*taken_along, *idle))

    def _quota_with(self, units: Iterable[Unit]) -> Draft:
        draft = Draft(self._search.need, self._search.short_quota, None)
        for unit in units:
            draft.release(unit.agent)
        return draft

    def _frees_own(self, unit: Unit) -> bool:
        group = self._group_of(unit)
        return group is not None and group.pool_name == self._own

    def _frees(self, unit: Unit) -> Iterator[tuple[str, str]]:
        """(node id, under which name it stands there) of all room that its leaving frees."""
        group = self._group_of(unit)
        if group is not None:
            yield from ((node_id, group.key(i)) for i, node_id in enumerate(group.node_ids))
        elif unit.agent.group_id is None and unit.agent.node_id is not None:
            yield unit.agent.node_id, unit.agent.spec.name

    def _group_of(self, unit: Unit) -> Group | None:
        """The dynamic group that goes with it."""
        group = self._state.groups.by_id.get(unit.agent.group_id or "")
        goes = group is not None and goes_along(group, unit.agent.spec.name)
        return group if goes else None


def _place(unit: Unit) -> tuple[float, float, float, str]:
    return unit.order


def _first(entry: tuple[_FirstT, object]) -> _FirstT:
    return entry[0]
