"""Splits one dim into pieces, and pieces into smaller pieces, as interval arithmetic.

A ``Piece`` is what one coordinate holds of a dim, as runs of the whole dim with their position in the local
array. Everything else in this package is arithmetic on pieces; no element is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec

from schedulemesh.dispatch.placement import Assign, Cut, Shard, Uneven
from schedulemesh.errors import InvalidRequestError


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A run of elements of the whole dim, and its start in the local array."""

    #: First element of the whole.
    start: int
    #: One past the last element of the whole; above ``start``.
    stop: int
    #: Index of the first element in the local array.
    local: int


class Piece(msgspec.Struct, frozen=True):
    """What one coordinate holds of a dim."""

    #: Length of the local array, padding included.
    size: int
    #: The runs, ordered by local index; no two neighbours are contiguous both in the whole and locally.
    segments: tuple[Segment, ...]

    @property
    def length(self) -> int:
        """The number of elements held: ``size`` without the padding."""
        return sum(segment.stop - segment.start for segment in self.segments)

    @property
    def run(self) -> slice | None:
        """The elements as one slice of the whole; None if they are several runs or padded."""
        if not self.size:
            return slice(0, 0)
        first = self.segments[0] if self.segments else None
        if first is None or first.stop - first.start != self.size:
            return None
        return slice(first.start, first.stop)

    def indices(self) -> tuple[int | None, ...]:
        """For each local index the element of the whole; None is padding."""
        elements: list[int | None] = [None] * self.size
        for segment in self.segments:
            length = segment.stop - segment.start
            elements[segment.local : segment.local + length] = range(segment.start, segment.stop)
        return tuple(elements)


#: First element, one past the last, local size (larger than the number of elements if padded).
_Span = tuple[int, int, int]
#: Name and size of an axis, and how it splits a dim.
Axis = tuple[str, int, Cut]


@lru_cache(maxsize=1024)
def pieces(length: int, cuts: tuple[Axis, ...]) -> tuple[Piece, ...]:
    """The pieces of a dim of ``length`` elements, split by the axes one after another.

    In the order of the coordinates, the last axis varying fastest. An error names the axis and sizes.
    """
    result: tuple[Piece, ...] = (Piece(length, joined([(0, length, 0)])),)
    for cut in cuts:
        result = tuple(
            _within(outer, inner) for outer in result for inner in _split(outer.size, cut)
        )
    return result


@lru_cache(maxsize=1024)
def _split(length: int, cut: Axis) -> tuple[Piece, ...]:
    name, parts, how = cut
    if isinstance(how, Assign):
        return _assigned(length, name, how)
    documents = how.documents or (length,)
    if sum(documents) != length:
        raise InvalidRequestError(
            f"the documents of axis {name} have {sum(documents)} elements, dim {how.dim} has {length}"
        )
    spans: list[list[_Span]] = [[] for _ in range(parts)]
    for first, document in zip(accumulate((0, *documents)), documents, strict=False):
        for coordinate, (start, stop, size) in _parts(document, parts, how, name):
            spans[coordinate].append((first + start, first + stop, size))
    return tuple(
        Piece(sum(size for *_, size in coordinate), _laid(coordinate)) for coordinate in spans
    )


def _parts(length: int, parts: int, how: Shard, name: str) -> Iterator[tuple[int, _Span]]:
    """The spans of one document, each with the coordinate that holds it, ordered by coordinate."""
    if not how.zigzag:
        yield from enumerate(_cut(length, parts, how.uneven, name))
        return
    spans = _cut(length, 2 * parts, how.uneven, name)
    for coordinate in range(parts):
        yield coordinate, spans[coordinate]
        yield coordinate, spans[-1 - coordinate]


@lru_cache(maxsize=1024)
def _cut(length: int, parts: int, uneven: Uneven, name: str) -> tuple[_Span, ...]:
    share, rest = divmod(length, parts)
    if rest and uneven == "error":
        raise InvalidRequestError(
            f"{length} elements over axis {name} do not make {parts} equal parts; allowed is a multiple of "
            f"{parts}, or uneven='pad', 'uneven', 'drop_last' or 'chunk'"
        )
    if uneven == "uneven":
        starts = [part * share + min(part, rest) for part in range(parts + 1)]
        return tuple((a, b, b - a) for a, b in pairwise(starts))
    if uneven in ("pad", "chunk"):
        share += bool(rest)
    ends = [(min(part * share, length), min((part + 1) * share, length)) for part in range(parts)]
    return tuple((a, b, share if uneven == "pad" else b - a) for a, b in ends)


def _assigned(length: int, name: str, how: Assign) -> tuple[Piece, ...]:
    rows = sum(map(len, how.groups))
    if rows != length:
        raise InvalidRequestError(
            f"{rows} rows are assigned over axis {name}, but dim {how.dim} has {length}"
        )
    return tuple(
        Piece(len(group), _laid((row, row + 1, 1) for row in group)) for group in how.groups
    )


def _laid(spans: Iterable[_Span]) -> tuple[Segment, ...]:
    """The spans placed one after another in the local array."""
    runs, local = [], 0
    for start, stop, size in spans:
        runs.append((start, stop, local))
        local += size
    return joined(runs)


def joined(runs: Iterable[tuple[int, int, int]]) -> tuple[Segment, ...]:
    """Segments of (start, stop, local): contiguous ones are merged, empty ones omitted."""
    merged: list[tuple[int, int, int]] = []
    for start, stop, local in runs:
        if start == stop:
            continue
        if merged and merged[-1][1] == start and merged[-1][2] + start - merged[-1][0] == local:
            merged[-1] = (merged[-1][0], stop, merged[-1][2])
        else:
            merged.append((start, stop, local))
    return tuple(Segment(*run) for run in merged)


def _within(outer: Piece, inner: Piece) -> Piece:
    """The piece ``inner`` of the local array described by ``outer``, in elements of the whole."""
    begins = [segment.local for segment in outer.segments]
    runs = []
    for needed in inner.segments:
        for outer_run in outer.segments[max(0, bisect_right(begins, needed.start) - 1) :]:
            if outer_run.local >= needed.stop:
                break
            shift = outer_run.start - outer_run.local
            start, stop = (
                max(needed.start + shift, outer_run.start),
                min(needed.stop + shift, outer_run.stop),
            )
            if start < stop:
                runs.append((start, stop, needed.local + start - shift - needed.start))
    return Piece(inner.size, joined(runs))


def compact(dim: Sequence[Piece]) -> tuple[int, tuple[Piece, ...]]:
    """The dim without the elements that no piece holds: its length, and the renumbered pieces."""
    begins, before = _runs(dim)
    if len(begins) == 1 and begins[0] == 0:
        return before[-1], tuple(dim)

    def moved(run: Segment) -> tuple[int, int, int]:
        at = bisect_right(begins, run.start) - 1
        start = before[at] + run.start - begins[at]
        return start, start + run.stop - run.start, run.local

    return before[-1], tuple(Piece(piece.size, joined(map(moved, piece.segments))) for piece in dim)


def _runs(dim: Sequence[Piece]) -> tuple[list[int], list[int]]:
    """The starts of the runs that are held, and the number of elements before each and in total."""
    begins: list[int] = []
    before = [0]
    end = -1
    for start, stop in sorted((run.start, run.stop) for piece in dim for run in piece.segments):
        if start == end:
            before[-1] += stop - start
        else:
            begins.append(start)
            before.append(before[-1] + stop - start)
        end = stop
    return begins, before
