"""Exact placement: finds an assignment of bundles to nodes if one exists.

A backtracking search over the nodes, emptiest first. For each node it tries the maximal sets of bundles that
fit there; a subset of another set is never the better choice. Equal bundles are counted instead of
distinguished, and dead ends are cached. The greedy choice is tried before and nearly always succeeds; this
search handles the few cases in which it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from schedulemesh.domain.resources import NOTHING, Resources, sum_of

#: Up to this many bundles and nodes an assignment is found if one exists. Of more nodes only the emptiest
#: are searched; more bundles are left to the greedy choice.
MOST_BUNDLES, MOST_NODES = 16, 64

#: The most sets of bundles that are looked at, on all nodes together: others wait for the decision. A search
#: that needs more finds nothing.
MOST_LOOKS = 30_000

#: How many bundles of each kind.
_Counts = tuple[int, ...]


class NodePlace(Protocol):
    """A node, or its free resources."""

    @property
    def amounts(self) -> Resources:
        """The free resources."""

    def takes(self, needs: Sequence[Resources]) -> bool:
        """Whether all of these fit together."""

    def signature(self) -> object:
        """A value that is equal for places that can hold the same bundles."""


def assign(bundles: Sequence[Resources], places: Sequence[NodePlace]) -> list[int] | None:
    """The index of the place of each bundle; None: no assignment exists. ``places``: emptiest first."""
    if len(bundles) > MOST_BUNDLES:
        return None
    search = _Search(bundles, places[:MOST_NODES])
    if not search.solve(0, search.counts):
        return None
    waiting = {kind: [i for i, need in enumerate(bundles) if need == kind] for kind in search.kinds}
    place_of_bundle = [0] * len(bundles)
    for place, counts in search.taken:
        for kind, count in zip(search.kinds, counts, strict=True):
            for _ in range(count):
                place_of_bundle[waiting[kind].pop()] = place
    return place_of_bundle


class _Search:
    def __init__(self, bundles: Sequence[Resources], places: Sequence[NodePlace]) -> None:
        counted = Counter(bundles)
        self.kinds = sorted(counted, key=lambda need: (-need.gpu, -need.cpu, -need.memory))
        self.counts: _Counts = tuple(counted[kind] for kind in self.kinds)
        #: (place, counts) of the assignment, once it is found.
        self.taken: list[tuple[int, _Counts]] = []
        self._places = places
        self._signatures = [place.signature() for place in places]
        #: For each place, the total free resources of it and all later places.
        self._free_from = [NOTHING]
        for place in reversed(places):
            self._free_from.append(self._free_from[-1] + place.amounts.within(place.amounts))
        self._free_from.reverse()
        #: For each place, how many bundles it and all later places have room for at most.
        self._count_from = [0]
        for place in reversed(places):
            self._count_from.append(self._count_from[-1] + _most_on(place.amounts, bundles))
        self._count_from.reverse()
        self._in_vain: set[tuple[int, _Counts]] = set()
        self._known: dict[tuple[object, _Counts], bool] = {}
        self._looks = 0

    def solve(self, at: int, remaining: _Counts) -> bool:
        """Whether the remaining bundles fit on the places from this one on."""
        if not any(remaining):
            return True
        if (at, remaining) in self._in_vain or sum(remaining) > self._count_from[at]:
            return False
        if not self._total(remaining).fits(self._free_from[at]):
            return False
        if at < len(self._places):
            for counts in self._largest(at, remaining):
                rest = tuple(n - m for n, m in zip(remaining, counts, strict=True))
                if self.solve(at + 1, rest):
                    self.taken.append((at, counts))
                    return True
        self._in_vain.add((at, remaining))
        return False

    def _total(self, counts: _Counts) -> Resources:
        return sum_of(self._listed(counts))

    def _listed(self, counts: _Counts) -> list[Resources]:
        return [kind for kind, n in zip(self.kinds, counts, strict=True) for _ in range(n)]

    def _largest(self, at: int, remaining: _Counts) -> Iterator[_Counts]:
        """The maximal sets of remaining bundles that fit on the place."""
        for counts in self._sets(at, remaining, ()):
            more = (
                (*counts[:i], n + 1, *counts[i + 1 :])
                for i, n in enumerate(counts)
                if n < remaining[i]
            )
            if not any(self._takes(at, one) for one in more):
                yield counts

    def _sets(self, at: int, remaining: _Counts, begun: _Counts) -> Iterator[_Counts]:
        """All sets that fit on the place, those with the most of the first kinds first."""
        if len(begun) == len(remaining):
            yield begun
            return
        rest = (0,) * (len(remaining) - len(begun) - 1)
        for n in range(remaining[len(begun)], -1, -1):
            if self._takes(at, (*begun, n, *rest)):
                yield from self._sets(at, remaining, (*begun, n))

    def _takes(self, at: int, counts: _Counts) -> bool:
        self._looks += 1
        if self._looks > MOST_LOOKS:
            return False
        key = (self._signatures[at], counts)
        fits = self._known.get(key)
        if fits is None:
            fits = self._known[key] = self._places[at].takes(self._listed(counts))
        return fits


def _most_on(room: Resources, bundles: Sequence[Resources]) -> int:
    """How many of the bundles have room together at most, looked at kind by kind: the smallest of each."""
    free, most = dict(room.items()), len(bundles)
    for kind in {kind for need in bundles for kind, _ in need.items()}:
        amounts = sorted(dict(need.items()).get(kind, 0) for need in bundles)
        most = min(most, sum(total <= free.get(kind, 0) for total in accumulate(amounts)))
    return most
