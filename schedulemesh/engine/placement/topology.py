"""The domains of the topology in which the bundles of a group are placed; the rules are in docs/topology.md.

One domain of the level asked for is tried first, of several the one with the least free; then one of each
wider level up to the required one, or to the whole cluster. Inside of it as few domains of the next level as
possible are used, down to the narrowest, where the placement strategy chooses nodes.

Where all bundles are equal, the number that each domain has room for is counted, so that a placement is found
wherever there is one. Where they differ, sets of domains are tried one after the other, up to
``_MOST_TRIALS`` in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations, islice
from math import lcm
from typing import NamedTuple

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.domain.topology import Topology
from schedulemesh.engine.placement.placers import (
    BundlePlacement,
    FreeNode,
    NoPlacement,
    place_bundles,
)
from schedulemesh.engine.state.domains import Domain, DomainTree

#: How many sets of domains are tried for bundles that differ: others wait for the decision. Each of several
#: domains that may hold them gets an equal part, and at least so many.
_MOST_TRIALS, _LEAST_TRIALS = 300, 30

#: The nodes of some bundles, in their order.
_NodeIds = tuple[str, ...]


def place_in_domains(
    shape: GroupShape,
    topology: Topology,
    tree: DomainTree,
    free_node: Callable[[str], FreeNode],
) -> BundlePlacement | None:
    """The placement of a group as its topology asks for; None: it has no room that way. ``tree``: the nodes
    that may be used; ``free_node``: what is free on one of them, as a copy.
    """
    kind = _Counted if _is_counted(shape) else _Tried
    node_ids = kind(_Group(shape, topology, tree, free_node)).place()
    return None if node_ids is None else BundlePlacement(node_ids=node_ids)


def no_domain(
    shape: GroupShape,
    topology: Topology,
    tree: DomainTree,
    free_node: Callable[[str], FreeNode],
) -> NoPlacement:
    """That no domain holds what must be in one, and which of them has the most room."""
    level, need = topology.limit, shape.total
    if level < 0:
        level, need = topology.slice_at, sum_of(shape.bundles[: topology.slice_size])
    best = max(tree.at(level), key=lambda domain: domain.order, default=tree.root)
    missing = NoPlacement(
        bundle=0,
        short=msgspec.structs.replace(need, custom=()).beyond(best.free),
        level=topology.levels[level],
        domain=best.name,
        needed=need,
        free=best.free.of_kinds(need),
    )
    return (
        missing if missing.short else _searched(missing, _Group(shape, topology, tree, free_node))
    )


class _Group(NamedTuple):
    """The group that is placed, and where; see ``place_in_domains``."""

    shape: GroupShape
    topology: Topology
    tree: DomainTree
    free_node: Callable[[str], FreeNode]


def _searched(missing: NoPlacement, group: _Group) -> NoPlacement:
    """The same with what a search has shown: how many slices have room, or when it ended."""
    topology, changed = group.topology, msgspec.structs.replace
    slices = 0
    if topology.limit < 0 and topology.slice_size:
        slices = len(group.shape.bundles) // topology.slice_size
    if _is_counted(group.shape):
        placed = _Counted(group).slices_with_room() if slices else 0
        return changed(missing, slices=slices, slices_placed=placed) if placed else missing
    search = _Tried(group)
    search.place()
    return changed(missing, slices=slices, trials=search.trials if search.was_cut_off else 0)


def _is_counted(shape: GroupShape) -> bool:
    """Whether the number of bundles that a domain has room for tells all: they are equal, and their nodes do
    not have to differ within each part alone.
    """
    apart_by_part = shape.parts > 1 and shape.strategy == "STRICT_SPREAD"
    return len(set(shape.bundles)) == 1 and not apart_by_part


def _unit(shape: GroupShape, topology: Topology) -> int:
    """So many bundles, in their order, have to be in one domain of the level of slices."""
    each = len(shape.bundles) // shape.parts if shape.strategy.startswith("STRICT") else 1
    each = 1 if shape.parts == 1 else each
    return lcm(topology.slice_size or 1, each)


def _some_bundles(shape: GroupShape, first: int, count: int) -> GroupShape:
    """So many bundles from this one on, as a shape of their own."""
    size = len(shape.bundles) // shape.parts
    whole_parts = shape.parts > 1 and first % size == 0 and count % size == 0
    return msgspec.structs.replace(
        shape,
        bundles=shape.bundles[first : first + count],
        parts=count // size if whole_parts else 1,
        same_label="",
        topology=None,
    )


class _Choice:
    """The choice of domains for one group."""

    def __init__(self, group: _Group) -> None:
        self._shape, self._topology, self._tree, self._free_node = group
        #: How many domains of the present level have enough in all.
        self._domains = 1

    def place(self) -> _NodeIds | None:
        """The node of each bundle; None: there is no such placement."""
        total, topology = self._shape.total, self._topology
        if not self._tree.root.has(total):
            return None
        for level in range(topology.target, topology.limit - 1, -1):
            domains = [domain for domain in self._tree.at(level) if domain.has(total)]
            self._domains = len(domains)
            for domain in sorted(domains, key=_order):
                if (node_ids := self.all_in(domain, level)) is not None:
                    return node_ids
        return None

    def all_in(self, domain: Domain, level: int) -> _NodeIds | None:
        """The nodes of all bundles inside a domain of this level; None: it does not hold them."""
        raise NotImplementedError

    def on_nodes(self, part: GroupShape, node_ids: Sequence[str]) -> _NodeIds | None:
        """Where the strategy places some bundles on these nodes; None: nowhere."""
        placement = place_bundles(part, [self._free_node(node_id) for node_id in node_ids])
        return placement.node_ids if isinstance(placement, BundlePlacement) else None


class _Counted(_Choice):
    """The choice for equal bundles, of which each domain has room for a number."""

    def __init__(self, group: _Group) -> None:
        super().__init__(group)
        shape = group.shape
        self._need, self._count = shape.bundles[0], len(shape.bundles)
        self._part = self._count // shape.parts if shape.strategy == "STRICT_PACK" else 1
        self._apart = shape.strategy == "STRICT_SPREAD"
        self._unit = _unit(shape, group.topology)
        self._counts: dict[str, int] = {}
        self._capacities: dict[Domain, int] = {}

    def all_in(self, domain: Domain, level: int) -> _NodeIds | None:
        """See ``_Choice``."""
        if self._bound(domain) < self._count or self._capacity(domain, level) < self._count:
            return None
        return self._fill(domain, level, 0, self._count)

    def slices_with_room(self) -> int:
        """How many slices have room, each in a domain of its level."""
        level = self._topology.slice_at
        bundles = sum(self._capacity(domain, level) for domain in self._tree.at(level))
        return bundles // self._topology.slice_size

    def _fill(self, domain: Domain, level: int, first: int, count: int) -> _NodeIds | None:
        """The nodes of so many bundles from this one on, inside of a domain that has room for them."""
        if level == self._topology.narrowest:
            able = [n for n in self._tree.able(domain, self._need) if self._on_node(n)]
            return self.on_nodes(_some_bundles(self._shape, first, count), able)
        node_ids: _NodeIds = ()
        for child, taken in self._fewest(domain, level + 1, count):
            inside = self._fill(child, level + 1, first + len(node_ids), taken)
            if inside is None:
                return None
            node_ids += inside
        return node_ids

    def _fewest(self, domain: Domain, level: int, count: int) -> Iterator[tuple[Domain, int]]:
        """The fewest domains of the next level that take so many bundles, and how many each of them takes.
        The one that takes the last ones is the one with the least free.
        """
        children = list(domain.children.values())
        largest: list[tuple[int, tuple[int, int, int, tuple[str, ...]], bool, Domain]] = []
        taken = set[Domain]()
        while count > 0:
            last = self._last(children, taken, level, count)
            if last is not None:
                yield last, count
                return
            if not largest:
                largest = [(-self._bound(c), c.order, False, c) for c in children]
                heapify(largest)
            child, room = self._largest(largest, level)
            taken.add(child)
            yield child, room
            count -= room

    def _last(
        self, children: Sequence[Domain], taken: set[Domain], level: int, count: int
    ) -> Domain | None:
        """Of those that take all of so many bundles the one with the least free; None: none takes them."""
        able = [c for c in children if self._bound(c) >= count and c not in taken]
        able.sort(key=_order)
        return next((c for c in able if self._capacity(c, level) >= count), None)

    def _largest(
        self,
        heap: list[tuple[int, tuple[int, int, int, tuple[str, ...]], bool, Domain]],
        level: int,
    ) -> tuple[Domain, int]:
        """The one with room for most, and for how many. Only those that may be the one are counted."""
        while True:
            bound, order, is_counted, child = heappop(heap)
            if is_counted:
                return child, -bound
            heappush(heap, (-self._capacity(child, level), order, True, child))

    def _bound(self, domain: Domain) -> int:
        """No more bundles than this have room in the domain."""
        counted = self._capacities.get(domain)
        return int(min(domain.most(self._need), self._count)) if counted is None else counted

    def _capacity(self, domain: Domain, level: int) -> int:
        """How many bundles have room in a domain of this level, at most as many as there are."""
        capacity = self._capacities.get(domain)
        if capacity is None:
            capacity = self._capacities[domain] = self._counted(domain, level)
        return capacity

    def _counted(self, domain: Domain, level: int) -> int:
        slice_at = self._topology.slice_at
        if level < slice_at:
            children = domain.children.values()
            return min(self._count, sum(self._capacity(child, level + 1) for child in children))
        room = 0
        for node_id in self._tree.able(domain, self._need):
            room += self._on_node(node_id)
            if room >= self._count:
                return self._count
        return room // self._unit * self._unit if level == slice_at else room

    def _on_node(self, node_id: str) -> int:
        """How many bundles have room on a node."""
        count = self._counts.get(node_id)
        if count is None:
            count = self._counts[node_id] = self._count_on(node_id)
        return count

    def _count_on(self, node_id: str) -> int:
        most = 1 if self._apart else self._count
        return self._free_node(node_id).count(self._need, most) // self._part * self._part


class _Tried(_Choice):
    """The choice for bundles that differ, by trying."""

    def __init__(self, group: _Group) -> None:
        super().__init__(group)
        #: How many sets of domains were tried, and up to how many are.
        self.trials, self._most_trials = 0, _MOST_TRIALS
        #: Whether slices had further ones.
        self.was_cut_off = False
        #: By domain without a slice, what is free there.
        self._states: dict[Domain, Hashable] = {}

    def all_in(self, domain: Domain, level: int) -> _NodeIds | None:
        """See ``_Choice``."""
        topology = self._topology
        self._most_trials = self.trials + max(_MOST_TRIALS // self._domains, _LEAST_TRIALS)
        if level < topology.slice_at:
            unit = _unit(self._shape, topology)
            domains = self._tree.inside(domain, topology.slice_at - level)
            return self._slices(0, unit, domains, {}, frozenset())
        return self._together(domain, level)

    def _together(self, domain: Domain, level: int) -> _NodeIds | None:
        """In as few domains of the next level as are found."""
        total = self._shape.total
        if level == self._topology.narrowest:
            return self.on_nodes(self._whole, list(domain.node_ids))
        children = sorted(domain.children.values(), key=_order)
        for child in children:
            if child.has(total) and (node_ids := self._together(child, level + 1)) is not None:
                return node_ids
        children.reverse()
        for count in range(2, len(children)):
            if not _have_together(children[:count], total):
                continue
            for some in self._sets(children, count):
                node_ids = self.on_nodes(self._whole, [n for child in some for n in child.node_ids])
                if node_ids is not None:
                    return node_ids
        return self.on_nodes(self._whole, list(domain.node_ids))

    @property
    def _whole(self) -> GroupShape:
        return msgspec.structs.replace(self._shape, topology=None, same_label="")

    def _sets(self, children: Sequence[Domain], count: int) -> Iterator[Sequence[Domain]]:
        """Sets of so many domains that have enough together, those with the most first."""
        total = self._shape.total
        for some in islice(combinations(children, count), _MOST_TRIALS):
            if self.trials >= self._most_trials:
                return
            if _have_together(some, total):
                self.trials += 1
                yield some

    def _slices(
        self,
        first: int,
        size: int,
        domains: Sequence[Domain],
        nodes: dict[str, FreeNode],
        used: frozenset[Domain],
    ) -> _NodeIds | None:
        """The nodes of the slices from this bundle on, one after the other: in a domain that has one already,
        or in the one with the least free. ``nodes``: those on which former slices were put.
        """
        count = min(size, len(self._shape.bundles) - first)
        if not count:
            return ()
        part = _some_bundles(self._shape, first, count)
        need, failed = part.total, set[Hashable]()
        for domain in sorted(domains, key=lambda each: (each not in used, each.order)):
            if not domain.has(need):
                continue
            if self.trials >= self._most_trials:
                self.was_cut_off = True
                return None
            state = self._state(domain, nodes, is_used=domain in used)
            if state in failed:
                continue
            failed.add(state)
            self.trials += 1
            able = [(nodes.get(n) or self._free_node(n)).copy() for n in domain.node_ids]
            placement = place_bundles(part, able)
            if not isinstance(placement, BundlePlacement):
                continue
            after = self._with(nodes, part.bundles, placement.node_ids)
            rest = self._slices(first + count, size, domains, after, used | {domain})
            if rest is not None:
                return placement.node_ids + rest
        return None

    def _state(self, domain: Domain, nodes: Mapping[str, FreeNode], *, is_used: bool) -> Hashable:
        """How much is free on how many nodes of a domain: of two that are equal in this both take the same
        slices, or neither.
        """
        state = None if is_used else self._states.get(domain)
        if state is None:
            each = (nodes.get(n) or self._free_node(n) for n in domain.node_ids)
            state = frozenset(Counter(node.signature() for node in each).items())
            if not is_used:
                self._states[domain] = state
        return state

    def _with(
        self, nodes: dict[str, FreeNode], bundles: Sequence[Resources], node_ids: _NodeIds
    ) -> dict[str, FreeNode]:
        """The nodes with these bundles put there."""
        after = dict(nodes)
        for node_id in set(node_ids):
            after[node_id] = (nodes.get(node_id) or self._free_node(node_id)).copy()
        for need, node_id in zip(bundles, node_ids, strict=True):
            after[node_id].put(need)
        for node_id in set(node_ids):
            after[node_id].taken = False
        return after


def _order(domain: Domain) -> tuple[int, int, int, tuple[str, ...]]:
    return domain.order


def _have_together(domains: Sequence[Domain], need: Resources) -> bool:
    """Whether as much is free in these domains together."""
    return (
        need.gpu <= sum(domain.gpu for domain in domains)
        and need.cpu <= sum(domain.cpu for domain in domains)
        and need.memory <= sum(domain.memory for domain in domains)
    )
