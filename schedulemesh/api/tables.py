"""The command that prints a list as a table, as it is declared with the call that lists."""

from __future__ import annotations

from enum import Enum

import msgspec


class Shown(Enum):
    """How a cell shows a value, where that does not follow from the type and the name of its field."""

    #: The name of an owner; of a row that is no owner's, nothing.
    OWNER = "owner"
    #: A part of a whole.
    PERCENT = "percent"
    #: GPU-hours.
    HOURS = "hours"
    #: The limits of an owner in a pool.
    LIMIT_OF_OWNER = "limit of an owner"
    #: A moment, as the time from now until then.
    UNTIL = "until"


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table."""

    #: The field of the row.
    key: str
    #: Empty: the name of the field.
    heading: str = ""
    #: The heading in Chinese; empty: as in other tables.
    chinese: str = ""
    #: None: as its type and its name say.
    shown: Shown | None = None
    #: Whether only ``-o wide`` shows it.
    wide: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The command that prints the rows of a list; the docstring of the call is its help."""

    #: The word behind ``schedulemesh``.
    command: str
    #: The heading of the help below which it stands: one of ``cli.root.GROUPS``.
    group: str
    #: The first sentence of its help in Chinese.
    chinese: str
    #: What its rows are, in the plural, in English and in Chinese.
    rows: tuple[str, str]
    #: The field that names a row, for ``-o name``.
    name: str = "name"
    #: None: every field of the row, under its name.
    columns: tuple[TableColumn, ...] | None = None
