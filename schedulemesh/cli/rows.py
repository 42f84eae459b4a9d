"""What a command found, before it is printed: rows with columns, facts by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schedulemesh.cli.language import language
from schedulemesh.cli.texts import text

#: Plain data by name.
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    #: In English; filters and sorting take it in any language.
    heading: str
    #: Where its value is in the row, by names with dots between them; empty: the value is the whole row, and
    #: the column is left out of CSV.
    key: str
    #: The value as a cell of the table.
    show: Callable[[Any], str] = text
    #: Whether only ``-o wide`` shows it.
    wide: bool = False
    #: Whether it is aligned to the right, as numbers are.
    right: bool = False
    #: When it is left out of a table that is too wide for the terminal, the highest first; 0: never. In a
    #: table in which any column has it, figures and words are not broken (``schedulemesh.cli.fitting``).
    drop: int = 0
    #: When it is left out of a table that is too wide even with broken words for a terminal of less than 80
    #: columns, the highest first; 0: never.
    spare: int = 0
    #: Characters of its lines; None: as many as there is room for.
    width: int | None = None
    #: Characters that its lines keep where other columns can be narrowed instead.
    least: int = 0
    #: Whether it is a list of amounts, none of which is broken where other columns can be narrowed instead.
    amounts: bool = False
    #: Of one whose value is the whole row: the fields that the cell is made of; empty: any.
    parts: tuple[str, ...] = ()
    #: The heading in Chinese where the word means something else in other tables; empty: that of the word.
    chinese: str = ""

    @property
    def title(self) -> str:
        """The heading in the language of this command."""
        if language() == "en":
            return self.heading
        from schedulemesh.cli.headings import CHINESE

        return self.chinese or CHINESE.get(self.heading, self.heading)

    def cell(self, row: Row) -> str:
        """The text of its cell in a row."""
        return self.show(value_at(row, self.key))

    def cells(self, rows: Sequence[Row]) -> list[str]:
        """The texts of its cells in these rows. Amounts, and what is made of several fields, are the same in
        many rows and are written once.
        """
        if not (self.amounts or self.parts):
            return [self.show(value) for value in self._values(rows)]
        fields = self.parts or (self.key,)
        written: dict[Hashable, str] = {}
        cells = []
        for row in rows:
            made_of = _comparable([value_at(row, field) for field in fields])
            if made_of not in written:
                written[made_of] = self.cell(row)
            cells.append(written[made_of])
        return cells

    def _values(self, rows: Sequence[Row]) -> list[Any]:
        """Its values in these rows."""
        try:
            return [row[self.key] for row in rows]
        except KeyError:
            return [value_at(row, self.key) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Rows of one kind."""

    #: What they are, in the plural: the title, and the name in JSON where several kinds are printed.
    kind: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    #: The type of the rows, which says what their fields may be; None: they may be anything.
    row: type | None = None
    #: The field that names a row, for ``-o name``.
    name: str = "name"
    #: Remarks, which are printed on stderr.
    notes: tuple[str, ...] = ()
    #: What they are in Chinese; empty: as ``headings.KINDS`` says.
    chinese: str = ""
    #: Whether lines separate the rows, because cells have several lines.
    ruled: bool = False


@dataclass(frozen=True, kw_only=True)
class Record:
    """Facts about one thing, with listings that belong to it."""

    facts: Row
    name: str = "name"
    #: The lines of the table: heading and text; None: the facts themselves.
    lines: Sequence[tuple[str, str]] | None = None
    #: What is printed in place of the lines; None: the lines.
    text: str | None = None
    listings: tuple[Listing, ...] = field(default=())
    notes: tuple[str, ...] = ()


def value_at(row: Row, key: str) -> Any:
    """The value at names with dots between them; None where there is none. A name may itself have dots."""
    if not key or key in row:
        return row[key] if key else row
    first, dot, rest = key.partition(".")
    inner = row.get(first)
    return value_at(inner, rest) if dot and isinstance(inner, Mapping) else None


def _comparable(values: Sequence[Any]) -> Hashable:
    """What is equal where these values are, each of which is of one type in all rows."""
    comparable = tuple([tuple(v.items()) if type(v) is dict else v for v in values])
    try:
        hash(comparable)
    except TypeError:
        return str(comparable)
    return comparable
