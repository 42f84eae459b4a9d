"""What a command found, before it is printed: rows with columns, facts by name; and the choice of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from schedulemesh.cli.command import Select
from schedulemesh.cli.texts import text
from schedulemesh.errors import InvalidRequestError, nearest

#: Plain data by name.
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

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
    #: Characters of its lines; None: as many as there is room for.
    width: int | None = None
    #: Characters that its lines keep where other columns can be narrowed instead.
    least: int = 0
    #: All values that it may have, where they are few: a filter for another one is refused. Empty: any.
    allowed: tuple[str, ...] = ()

    def cell(self, row: Row) -> str:
        """The text of its cell in a row."""
        return self.show(value_at(row, self.key))


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Rows of one kind."""

    #: What they are, in the plural: the title, and the name in JSON where several kinds are printed.
    kind: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    #: The field that names a row, for ``-o name``.
    name: str = "name"
    #: Remarks, which are printed on stderr.
    notes: tuple[str, ...] = ()
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


def selected(listing: Listing, select: Select) -> Listing:
    """The rows that the filters choose. Raises InvalidRequestError for a filter that no row can answer."""
    rows = list(listing.rows)
    for given in select.filters or ():
        key, wanted, equal = _parts(given, "-f")
        at = _key_of(listing, key)
        _check_value(listing, key, at, wanted)
        rows = [row for row in rows if _matches(value_at(row, at), wanted) == equal]
    for given in select.labels or ():
        key, wanted, equal = _parts(given, "-l")
        rows = [row for row in rows if ((row.get("labels") or {}).get(key) == wanted) == equal]
    if select.sort:
        at = _key_of(listing, select.sort.removeprefix("-"))
        rows.sort(key=lambda row: _place(value_at(row, at)), reverse=select.sort.startswith("-"))
    return replace(listing, rows=rows)


def _place(value: Any) -> tuple[int, float, str]:
    """Where a value comes among others: missing ones first, then numbers, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, (bool, int, float)):
        return (1, float(value), "")
    return (2, 0.0, text(value))


def _parts(given: str, option: str) -> tuple[str, str, bool]:
    """Key, value, and whether they are to be equal."""
    key, sign, value = given.partition("=")
    if not sign or not key.strip("! "):
        raise InvalidRequestError(f"{option} is {given!r}; it takes KEY=VALUE or KEY!=VALUE")
    return key.removesuffix("!").strip(), value, not key.endswith("!")


def _key_of(listing: Listing, given: str) -> str:
    """The field of the rows that a filter names, by its key or by the heading of its column."""
    headings = {column.heading: column.key for column in listing.columns if column.key}
    # A column of several fields is filtered by the field of its name.
    known = {*headings.values(), *(c.heading for c in listing.columns if c.allowed and not c.key)}
    known.update(key for row in listing.rows for key in row)
    if given in known or given.partition(".")[0] in known:
        return given
    if given in headings:
        return headings[given]
    allowed = sorted({*headings, *known})
    raise InvalidRequestError(
        f"{listing.kind} have no field {given!r}{nearest(given, allowed)}; they have {', '.join(allowed)}"
    )


def _check_value(listing: Listing, given: str, at: str, wanted: str) -> None:
    """Raise InvalidRequestError for a value that the field never has."""
    for column in listing.columns:
        if column.allowed and at in (column.key, column.heading):
            if wanted.lower() not in column.allowed:
                raise InvalidRequestError(
                    f"{given} is {wanted!r}{nearest(wanted, column.allowed)}; it may be "
                    f"{', '.join(column.allowed)}"
                )
            return


def _matches(value: object, wanted: str) -> bool:
    """Whether a value is the given one as it is printed, or a list contains it."""
    if isinstance(value, (list, tuple)):
        return any(_matches(one, wanted) for one in value)
    spellings: Iterable[str] = (text(value), str(value))
    return wanted in spellings or wanted.lower() in {word.lower() for word in spellings}
