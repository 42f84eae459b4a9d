"""Exact placement: an assignment of bundles to nodes wherever there is one.

Node by node, emptiest first, each set of bundles is tried that the node takes and that no further bundle
could be added to; a set that is part of another is never the better choice. Bundles that are alike are
counted, not told apart, and what was found to lead nowhere is remembered. The greedy choice comes first and
nearly always suffices; this is for the few cases in which it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from schedulemesh.domain.resources import NOTHING, Resources, sum_of

#: Up to so many bundles and nodes an assignment is found wherever there is one. Of more nodes the emptiest
#: ones are looked at; more bundles are left to the greedy choice.
MOST_BUNDLES, MOST_NODES = 16, 64

#: How many bundles of each kind.
_Counts = tuple[int, ...]


class Place(Protocol):
    """A node, or what is free of it."""

    @property
    def amounts(self) -> Resources:
        """What is free there."""

    def takes(self, needs: Sequence[Resources]) -> bool:
        """Whether it has room for all of these together."""

    def signature(self) -> object:
        """Places of the same signature take the same bundles."""


def assign(bundles: Sequence[Resources], places: Sequence[Place]) -> list[int] | None:
    """For each bundle the number of its place; None: there is no assignment. Places come emptiest first."""
    if len(bundles) > MOST_BUNDLES:
        return None
    search = _Search(bundles, places[:MOST_NODES])
    if not search.solve(0, search.counts):
        return None
    waiting = {kind: [i for i, need in enumerate(bundles) if need == kind] for kind in search.kinds}
    found = [0] * len(bundles)
    for place, counts in search.taken:
        for kind, count in zip(search.kinds, counts, strict=True):
            for _ in range(count):
                found[waiting[kind].pop()] = place
    return found


class _Search:
    def __init__(self, bundles: Sequence[Resources], places: Sequence[Place]) -> None:
        counted = Counter(bundles)
        self.kinds = sorted(counted, key=lambda need: (-need.gpu, -need.cpu, -need.memory))
        self.counts: _Counts = tuple(counted[kind] for kind in self.kinds)
        #: (place, counts) of the assignment, once there is one.
        self.taken: list[tuple[int, _Counts]] = []
        self._places = places
        self._signatures = [place.signature() for place in places]
        #: What is free from each place on, those after it included.
        self._free_from = [NOTHING]
        for place in reversed(places):
            self._free_from.append(self._free_from[-1] + place.amounts.within(place.amounts))
        self._free_from.reverse()
        self._in_vain: set[tuple[int, _Counts]] = set()
        self._known: dict[tuple[object, _Counts], bool] = {}

    def solve(self, at: int, left: _Counts) -> bool:
        """Whether the places from this one on take what is left."""
        if not any(left):
            return True
        if (at, left) in self._in_vain or not self._total(left).fits(self._free_from[at]):
            return False
        if at < len(self._places):
            for counts in self._largest(at, left):
                rest = tuple(n - m for n, m in zip(left, counts, strict=True))
                if self.solve(at + 1, rest):
                    self.taken.append((at, counts))
                    return True
        self._in_vain.add((at, left))
        return False

    def _total(self, counts: _Counts) -> Resources:
        return sum_of(self._listed(counts))

    def _listed(self, counts: _Counts) -> list[Resources]:
        return [kind for kind, n in zip(self.kinds, counts, strict=True) for _ in range(n)]

    def _largest(self, at: int, left: _Counts) -> Iterator[_Counts]:
        """The sets that the place takes and that nothing of what is left can be added to."""
        for counts in self._sets(at, left, ()):
            more = (
                (*counts[:i], n + 1, *counts[i + 1 :]) for i, n in enumerate(counts) if n < left[i]
            )
            if not any(self._takes(at, one) for one in more):
                yield counts

    def _sets(self, at: int, left: _Counts, begun: _Counts) -> Iterator[_Counts]:
        """All sets that the place takes, those with most of the first kinds first."""
        if len(begun) == len(left):
            yield begun
            return
        rest = (0,) * (len(left) - len(begun) - 1)
        for n in range(left[len(begun)], -1, -1):
            if self._takes(at, (*begun, n, *rest)):
                yield from self._sets(at, left, (*begun, n))

    def _takes(self, at: int, counts: _Counts) -> bool:
        key = (self._signatures[at], counts)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._places[at].takes(self._listed(counts))
        return known
