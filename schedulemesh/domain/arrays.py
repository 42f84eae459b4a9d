"""Arrays: one submission that stands for many tasks, its members, which differ in their index only.

An array is written as ``0-99``, ``0-99:5`` (every fifth), ``1,4,7-9``, and with ``%10`` behind it, where at
most ten members run at once. The member of array ``train`` with index 3 is the task ``train[3]``.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, pairwise

import msgspec

from schedulemesh.domain.names import MAX_CHARS, as_text
from schedulemesh.errors import InvalidRequestError, shown

#: The largest index, and the most members of an array.
MAX_INDEX, MAX_MEMBERS = 1_000_000_000, 100_000
#: Characters of an array as it is written; indices with gaps take several each.
MAX_TEXT = 20_000
#: Characters that the index adds to the id of an array.
_SUFFIX = len(f"[{MAX_INDEX}]")

_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", re.ASCII)
_LIMIT = re.compile(r"[1-9]\d{0,9}", re.ASCII)
_MEMBER = re.compile(r"(.+)\[([0-9,:-]+)\]", re.ASCII | re.DOTALL)

_FORM = "indices are written as 0-99, 0-99:5, 1,4,7-9, and with %10 behind them where at most ten run at once"


class Indices:
    """A set of indices, kept as ranges: its size in memory depends on the gaps alone."""

    __slots__ = ("_firsts", "_lasts", "_size")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        #: The first and the last index of each range, ascending, with gaps between them.
        self._firsts, self._lasts = array("q"), array("q")
        self._size = 0
        for first, last in ranges:
            self.add_range(first, last)

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return bool(self._size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Indices) and [*self.ranges()] == [*other.ranges()]

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._firsts, index) - 1
        return at >= 0 and index <= self._lasts[at]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges():
            yield from range(first, last + 1)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The ranges, ascending."""
        yield from zip(tuple(self._firsts), tuple(self._lasts), strict=True)

    @property
    def first(self) -> int:
        """The lowest index. Raises IndexError where there is none."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """The highest index. Raises IndexError where there is none."""
        return self._lasts[-1]

    def copy(self) -> Indices:
        """The same indices as another set."""
        return Indices(self.ranges())

    def add_range(self, first: int, last: int) -> None:
        """Add all indices of a range."""
        if not self._size or first > self._lasts[-1]:
            if self._size and first == self._lasts[-1] + 1:
                self._lasts[-1] = last
            else:
                self._firsts.append(first)
                self._lasts.append(last)
            self._size += last - first + 1
            return
        begin = bisect_right(self._lasts, first - 2)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._replace(begin, end, [(first, last)])

    def add(self, index: int) -> None:
        """Add an index."""
        self.add_range(index, index)

    def discard_range(self, first: int, last: int) -> None:
        """Remove all indices of a range, as far as they are there."""
        begin = bisect_right(self._lasts, first - 1)
        end = bisect_right(self._firsts, last)
        if begin >= end:
            return
        pieces = [(self._firsts[begin], first - 1), (last + 1, self._lasts[end - 1])]
        self._replace(begin, end, [piece for piece in pieces if piece[0] <= piece[1]])

    def discard(self, index: int) -> None:
        """Remove an index, if it is there."""
        self.discard_range(index, index)

    def within(self, other: Indices) -> Indices:
        """Those that are also in the other set."""
        common = Indices()
        for first, last in other.ranges():
            at = bisect_right(self._lasts, first - 1)
            while at < len(self._firsts) and self._firsts[at] <= last:
                common.add_range(max(first, self._firsts[at]), min(last, self._lasts[at]))
                at += 1
        return common

    def without(self, other: Indices) -> Indices:
        """Those that are not in the other set; takes no longer than looking at both once."""
        rest, holes = Indices(), other.ranges()
        hole = next(holes, None)
        for first, last in self.ranges():
            begin = first
            while hole is not None and hole[0] <= last:
                if begin < hole[0]:
                    rest.add_range(begin, hole[0] - 1)
                begin = max(begin, hole[1] + 1)
                if hole[1] > last:
                    break
                hole = next(holes, None)
            if begin <= last:
                rest.add_range(begin, last)
        return rest

    def joined_with(self, other: Indices) -> Indices:
        """Those of both sets; takes no longer than looking at both once."""
        return Indices(sorted((*self.ranges(), *other.ranges())))

    def written(self, most: int | None = None) -> str:
        """The indices as text, such as ``0-3,7``. ``most``: how many ranges are written before ``…``."""
        words = []
        for number, (first, last) in enumerate(self.ranges()):
            if number == most:
                words.append("…")
                break
            words.append(f"{first}" if first == last else f"{first}-{last}")
        return ",".join(words)

    def _replace(self, begin: int, end: int, pieces: list[tuple[int, int]]) -> None:
        """Have these ranges in place of those from ``begin`` to ``end``."""
        for at in range(begin, end):
            self._size -= self._lasts[at] - self._firsts[at] + 1
        self._firsts[begin:end] = array("q", (first for first, _ in pieces))
        self._lasts[begin:end] = array("q", (last for _, last in pieces))
        self._size += sum(last - first + 1 for first, last in pieces)


class IndexSpan(msgspec.Struct, frozen=True, gc=False):
    """Indices from one to another, each so far from the one before."""

    first: int
    last: int
    step: int

    def __len__(self) -> int:
        return (self.last - self.first) // self.step + 1

    def __contains__(self, index: int) -> bool:
        return self.first <= index <= self.last and not (index - self.first) % self.step

    def indices(self) -> range:
        """Its indices, ascending."""
        return range(self.first, self.last + 1, self.step)

    def ranges(self) -> Iterable[tuple[int, int]]:
        """Its indices as ranges, ascending."""
        return [(self.first, self.last)] if self.step == 1 else ((i, i) for i in self.indices())


class ArrayForm(msgspec.Struct, frozen=True, gc=False):
    """An array as it is written, taken apart."""

    #: Without an index that is in two of them.
    spans: tuple[IndexSpan, ...]
    #: How many members run at once; 0: as many as there is room for.
    most: int

    @property
    def size(self) -> int:
        """How many indices it has."""
        return sum(map(len, self.spans))

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest index."""
        return min(span.first for span in self.spans), max(span.last for span in self.spans)

    def has(self, index: int) -> bool:
        """Whether this is one of its indices."""
        return any(index in span for span in self.spans)

    def indices(self) -> Indices:
        """Its indices."""
        return Indices(sorted(chain.from_iterable(span.ranges() for span in self.spans)))


@lru_cache(maxsize=64)
def array_form(text: str) -> ArrayForm:
    """The array that a text stands for, which ``parse_array`` has given."""
    indices, _, most = text.partition("%")
    return ArrayForm(_spans(indices), int(most or 0))


def parse_array(value: object) -> str:
    """An array as a text that is right, from a text or from the number of its members, which have the indices
    from 0. Raises InvalidRequestError.
    """
    text = _as_range(value)
    if len(text) > MAX_TEXT:
        raise InvalidRequestError(
            f"array is written with {len(text):,} characters; up to {MAX_TEXT:,} are allowed, so use ranges "
            "and steps"
        )
    indices, percent, most = text.partition("%")
    if percent and not _LIMIT.fullmatch(most):
        raise InvalidRequestError(
            f"array is {shown(text)}, and how many members run at once is {shown(most)}; it must be a number "
            "from 1"
        )
    _spans(indices)
    return text


def _as_range(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_MEMBERS:
            raise InvalidRequestError(
                f"array is {value:,}; an array has 1 to {MAX_MEMBERS:,} members"
            )
        return f"0-{value - 1}"
    text = as_text(value)
    if text is None:
        raise InvalidRequestError(f"array is {shown(value)}; {_FORM}")
    return text.replace(" ", "")


def _spans(text: str) -> tuple[IndexSpan, ...]:
    """The spans in a text without the limit. Raises InvalidRequestError."""
    spans = tuple(_span(text, word) for word in text.split(","))
    if sum(map(len, spans)) > MAX_MEMBERS:
        raise InvalidRequestError(
            f"array is {shown(text)}; an array has up to {MAX_MEMBERS:,} members"
        )
    in_order = sorted(spans, key=lambda span: span.first)
    if any(one.last >= other.first for one, other in pairwise(in_order)):
        _check_apart(text, spans)
    return spans


def _check_apart(text: str, spans: Iterable[IndexSpan]) -> None:
    """Raise InvalidRequestError where an index is in two of these spans."""
    before: set[int] = set()
    for span in spans:
        if not before.isdisjoint(span.indices()):
            raise InvalidRequestError(
                f"array is {shown(text)}, which has indices of {span.first}-{span.last} twice; name each once"
            )
        before.update(span.indices())


def _span(text: str, word: str) -> IndexSpan:
    """What one word of an array stands for. Raises InvalidRequestError."""
    match = _RANGE.fullmatch(word)
    if match is None:
        raise InvalidRequestError(f"array is {shown(text)}; {_FORM}")
    first = int(match[1])
    last, step = int(match[2] or first), int(match[3] or 1)
    if last < first or not step or last > MAX_INDEX:
        raise InvalidRequestError(
            f"array is {shown(text)}, and {shown(word)} is no range: it goes from a lower to a higher index, "
            f"of at most {MAX_INDEX:,}, in steps from 1"
        )
    return IndexSpan(first, first + (last - first) // step * step, step)


def check_array_id(task_id: str) -> None:
    """Raise InvalidRequestError for an id that is too long for an array, whose members have longer ones."""
    if len(task_id) > MAX_CHARS - _SUFFIX:
        raise InvalidRequestError(
            f"the task_id of an array has up to {MAX_CHARS - _SUFFIX} characters, not {len(task_id)}: those "
            "of its members have the index behind it"
        )


def member_id(array_id: str, index: int) -> str:
    """The id of a member; the name of its agent is made of that of the array's in the same way."""
    return f"{array_id}[{index}]"


def members_named(task_id: str) -> tuple[str, str] | None:
    """The array's id and the indices in a text such as ``train[3-7]``; None: it names no members."""
    match = _MEMBER.fullmatch(task_id)
    return None if match is None else (match[1], match[2])


def parse_indices(text: str) -> Indices:
    """The indices behind the id of an array, such as ``3-7,9``. Raises InvalidRequestError."""
    return ArrayForm(_spans(text), 0).indices()
