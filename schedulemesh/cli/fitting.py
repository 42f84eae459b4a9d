"""Fits a table of figures into the width of a terminal, so that neither figures nor words are broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schedulemesh.cli.rows import Column, Listing

#: Spaces between two columns.
GAP = 2
#: Characters of a name that stay in one line.
_NAME = 24


def fitted(listing: Listing, width: int) -> Listing:
    """The listing with as many of its columns as this width has room for; those with the highest ``drop`` are
    left out first, and a remark names them. Headings are broken between words, and longer names anywhere.
    """
    columns = [column for column in listing.columns if not column.wide]
    left_out: list[Column] = []
    least = {id(column): _least(column, listing) for column in columns}

    def missing() -> int:
        return sum(least[id(column)] + GAP for column in columns) - GAP - width

    while missing() > 0 and any(column.drop for column in columns):
        last = max(column.drop for column in columns)
        left_out += [column for column in columns if column.drop == last]
        columns = [column for column in columns if column.drop != last]
    for column in columns:
        if missing() > 0 and not column.right:
            least[id(column)] -= min(missing(), least[id(column)] - _word(column.heading))
    notes = (*listing.notes, *_remark(left_out))
    return replace(listing, columns=_widened(columns, listing, least, -missing()), notes=notes)


def _widened(
    columns: Sequence[Column], listing: Listing, least: dict[int, int], room: int
) -> tuple[Column, ...]:
    """The columns with their widths: what they need at least, and what is left over for longer texts."""
    found = []
    for column in columns:
        cells = [column.heading, *(column.cell(row) for row in listing.rows)]
        more = max(0, min(max(map(_cells, cells)) - least[id(column)], room))
        room -= more
        found.append(replace(column, width=least[id(column)] + more))
    return tuple(found)


def _least(column: Column, listing: Listing) -> int:
    """The cells that the longest of its words and figures takes."""
    cells = [_cells(column.cell(row)) for row in listing.rows]
    longest = max(cells, default=0)
    return max(_word(column.heading), longest if column.right else min(longest, _NAME))


def _word(heading: str) -> int:
    """The cells that the longest word of a heading takes."""
    return max(map(_cells, heading.split()), default=0)


def _remark(left_out: Sequence[Column]) -> list[str]:
    if not left_out:
        return []
    named = ", ".join(c.heading for c in left_out if any(map(str.isalnum, c.heading)))
    return [f"not shown, for the width of the terminal: {named}; -o wide has all columns"]


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
