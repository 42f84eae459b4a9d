"""The intersections of the pieces of two splits of one dim."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from schedulemesh.dispatch.pieces import Piece, Segment


class ContiguousRun(msgspec.Struct, frozen=True, gc=False):
    """Elements that are contiguous on both sides."""

    #: Index of the first element in the source's local array.
    source: int
    #: Index of the first element in the destination's local array.
    destination: int
    #: Number of elements.
    length: int


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """For one dim, which source pieces intersect which destination pieces, and where."""

    #: For each destination piece the source pieces that intersect it, ascending, with the common runs.
    sources: tuple[dict[int, tuple[ContiguousRun, ...]], ...]
    #: For each source piece the destination pieces that intersect it, ascending, with the number of elements.
    destinations: tuple[tuple[tuple[int, int], ...], ...]
    #: The destination pieces with elements that no source piece holds.
    lacking: frozenset[int]

    def length(self, source: int, destination: int) -> int:
        """The number of elements that two pieces have in common."""
        return sum(run.length for run in self.sources[destination].get(source, ()))


def overlap(sources: Sequence[Piece], destinations: Sequence[Piece]) -> Overlap:
    """The intersections of the pieces."""
    source_runs = sorted(
        ((run.start, at, run) for at, piece in enumerate(sources) for run in piece.segments),
        key=lambda each: each[0],
    )
    begins = [start for start, *_ in source_runs]
    meets: list[list[tuple[int, int]]] = [[] for _ in sources]
    by_destination, lacking = [], set()
    for at, piece in enumerate(destinations):
        by_source: dict[int, list[ContiguousRun]] = {}
        for run in piece.segments:
            _meet(run, source_runs, begins, by_source)
        shared = {source: tuple(by_source[source]) for source in sorted(by_source)}
        if sum(run.length for runs in shared.values() for run in runs) != piece.length:
            lacking.add(at)
        for source, runs in shared.items():
            meets[source].append((at, sum(run.length for run in runs)))
        by_destination.append(shared)
    return Overlap(
        sources=tuple(by_destination),
        destinations=tuple(map(tuple, meets)),
        lacking=frozenset(lacking),
    )


def _meet(
    needed: Segment,
    source_runs: list[tuple[int, int, Segment]],
    begins: list[int],
    by_source: dict[int, list[ContiguousRun]],
) -> None:
    """Adds to ``by_source`` the intersections of ``needed`` with ``source_runs``, which ascend and are
    disjoint.
    """
    at = max(0, bisect_right(begins, needed.start) - 1)
    while at < len(source_runs) and begins[at] < needed.stop:
        _, source, run = source_runs[at]
        start, stop = max(run.start, needed.start), min(run.stop, needed.stop)
        if start < stop:
            there, here = run.local + start - run.start, needed.local + start - needed.start
            _append(by_source.setdefault(source, []), there, here, stop - start)
        at += 1


def _append(runs: list[ContiguousRun], source: int, destination: int, length: int) -> None:
    last = runs[-1] if runs else None
    if last and (last.source + last.length, last.destination + last.length) == (
        source,
        destination,
    ):
        runs[-1] = ContiguousRun(last.source, last.destination, last.length + length)
    else:
        runs.append(ContiguousRun(source, destination, length))
