"""Fits a table into the width of a terminal, so that neither figures nor, where there is room, words are
broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from schedulemesh.cli.language import phrase
from schedulemesh.cli.rows import Column, Listing

#: Spaces between two columns.
GAP = 2
#: Characters of a name that stay in one line.
_NAME = 24
#: Characters of a line, at least, in a column of texts.
_NARROWEST = 6
#: Characters of a line in which all columns have room, if need be with broken words.
_STANDARD = 80
#: More characters than a line has: a column of figures.
_UNBROKEN = 10_000
#: Where a line may end, the best first: between two amounts; at a space; after a sign within a word.
_AMOUNTS = re.compile(r".+?(?:, |$)")
_BREAKS = (re.compile(r"\S+\s*"), re.compile(r"[^,;/=:._-]*[,;/=:._-]*"))
#: Which of the breaks a line may have, and whether columns keep their ``least``.
_LEVELS = ((0, True), (0, False), (1, True), (1, False), (2, True))


def fitted(listing: Listing, width: int) -> Listing:
    """The listing with as many of its columns as this width has room for; those with the highest ``drop`` are
    left out first, and a remark names them. Headings are broken between words, and longer names anywhere.
    """
    columns = [column for column in listing.columns if not column.wide]
    least = {id(column): _least(column, listing) for column in columns}
    columns, dropped = _fitting(columns, least, width, lambda column: column.drop)
    spared: list[Column] = []
    if width < _STANDARD:
        narrowest = {
            id(c): least[id(c)] if c.right else min(least[id(c)], _narrowest(c)) for c in columns
        }
        columns, spared = _fitting(columns, narrowest, width, lambda column: column.spare)
    for limits in _limits(columns, listing):
        _narrow(columns, least, limits, _missing(columns, least, width))
    notes = (*listing.notes, *_remark([*dropped, *spared]))
    room = -_missing(columns, least, width)
    return replace(listing, columns=_widened(columns, listing, least, room), notes=notes)


def _fitting(
    columns: Sequence[Column], widths: dict[int, int], width: int, rank: Callable[[Column], int]
) -> tuple[list[Column], list[Column]]:
    """The columns that there is room for, and those that are left out: the highest rank first, 0 never."""
    remaining, left_out = list(columns), list[Column]()
    while _missing(remaining, widths, width) > 0 and any(map(rank, remaining)):
        last = max(map(rank, remaining))
        left_out += [column for column in remaining if rank(column) == last]
        remaining = [column for column in remaining if rank(column) != last]
    return remaining, left_out


def _missing(columns: Sequence[Column], widths: dict[int, int], width: int) -> int:
    """By how many characters the columns are wider than a line; negative: what is left over."""
    return sum(widths[id(column)] + GAP for column in columns) - GAP - width


def _limits(columns: Sequence[Column], listing: Listing) -> Iterator[dict[int, int]]:
    """How narrow columns of texts may get: first without broken amounts, then without broken words, then with
    words that are broken after signs, then with words that are broken anywhere. Columns keep the characters
    that they are to have at least, unless only amounts and words are in their way.
    """
    texts = [column for column in columns if not column.right]
    for level, keeps in _LEVELS:
        yield {
            id(c): max(
                _longest_part(c, listing, _breaks(amounts=c.amounts)[level]),
                c.least if keeps else 0,
            )
            for c in texts
        }
    yield {id(c): _narrowest(c) for c in texts}


def _narrowest(column: Column) -> int:
    """The characters that a line of texts has at least."""
    return max(_word(column.title), column.least, _NARROWEST)


def _breaks(*, amounts: bool) -> tuple[re.Pattern[str], ...]:
    return (_AMOUNTS if amounts else _BREAKS[0], *_BREAKS)


def _longest_part(column: Column, listing: Listing, pattern: re.Pattern[str]) -> int:
    """The cells of the longest part, or word of the heading, that stays in one line."""
    parts = (part for row in listing.rows for part in pattern.findall(column.cell(row)))
    return max(_word(column.title), max((_cells(part.rstrip()) for part in parts), default=0))


def _narrow(
    columns: Sequence[Column], widths: dict[int, int], limits: dict[int, int], missing: int
) -> None:
    """Take what is missing from the columns above their limits, always from the widest."""
    while missing > 0:
        wide = [c for c in columns if widths[id(c)] > limits.get(id(c), _UNBROKEN)]
        if not wide:
            return
        widths[id(max(wide, key=lambda column: widths[id(column)]))] -= 1
        missing -= 1


def folded(text: str, width: int, *, amounts: bool = False) -> str:
    """The text in lines of a width: broken at spaces, else after signs within a word, else anywhere; where it
    is a list of amounts, between these first.
    """
    breaks = _breaks(amounts=amounts)
    return "\n".join(
        line for paragraph in text.split("\n") for line in _lines(paragraph, width, breaks)
    )


def _lines(text: str, width: int, breaks: Sequence[re.Pattern[str]]) -> Iterator[str]:
    line = ""
    for part in breaks[0].findall(text) if breaks else text:
        if line and _cells((line + part).rstrip()) > width:
            yield line.rstrip()
            line = ""
        if breaks and _cells(part.rstrip()) > width:
            *before, line = _lines(part, width, breaks[1:])
            yield from before
            line += part[len(part.rstrip()) :]
        else:
            line += part
    yield line.rstrip()


def _widened(
    columns: Sequence[Column], listing: Listing, least: dict[int, int], room: int
) -> tuple[Column, ...]:
    """The columns with their widths: what they need at least, and what is left over for longer texts."""
    widened = []
    for column in columns:
        cells = [column.title, *(column.cell(row) for row in listing.rows)]
        more = max(0, min(max(map(_cells, cells)) - least[id(column)], room))
        room -= more
        widened.append(replace(column, width=least[id(column)] + more))
    return tuple(widened)


def _least(column: Column, listing: Listing) -> int:
    """The cells that the longest of its words and figures takes."""
    cells = [_cells(column.cell(row)) for row in listing.rows]
    longest = max(cells, default=0)
    if not column.right:
        longest = min(longest, max(_NAME, column.least))
    return max(_word(column.title), longest)


def _word(heading: str) -> int:
    """The cells that the longest word of a heading takes."""
    return max(map(_cells, heading.split()), default=0)


def _remark(left_out: Sequence[Column]) -> list[str]:
    if not left_out:
        return []
    titles = [c.title for c in left_out if any(map(str.isalnum, c.title))]
    return [phrase("remark_columns", columns=titles)]


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
