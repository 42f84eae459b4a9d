"""The commands that are declared with calls: each prints the rows of a list as the table of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import typer

from schedulemesh.api.call import Call
from schedulemesh.api.routes import ListRoute
from schedulemesh.api.rows import NameOf, named_by, scalar_fields
from schedulemesh.api.tables import Shown, Table, TableColumn
from schedulemesh.cli.columns import hours, owner_of_row, percent
from schedulemesh.cli.command import Select, Target, View, command
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Column, Listing
from schedulemesh.cli.selection import listed
from schedulemesh.cli.table_names import MODULES_OF_CALLS, declared_tables
from schedulemesh.cli.texts import (
    amounts,
    duration,
    labels,
    local_time,
    names,
    number,
    owner_limit,
    text,
    time_until,
)
from schedulemesh.cli.wording import node
from schedulemesh.domain.resources import Amounts
from schedulemesh.protocol.answers import Listed

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

_SHOWN: Mapping[Shown, Callable[[Any], str]] = {
    Shown.OWNER: owner_of_row,
    Shown.PERCENT: percent,
    Shown.HOURS: hours,
    Shown.LIMIT_OF_OWNER: lambda limit: owner_limit(limit) if limit else "-",
    Shown.UNTIL: time_until,
}
#: How the names of fields end that hold moments, and durations.
_MOMENTS, _DURATIONS = ("_at", "since", "until"), ("_s", "_time")


def table_app(modules: Iterable[str] = MODULES_OF_CALLS) -> typer.Typer:
    """The commands that the calls in these modules of ``schedulemesh.api`` declare."""
    app = typer.Typer()
    for call, listing, table in declared_tables(modules):
        _add(app, call, listing, table)
    return app


def _add(app: typer.Typer, call: type[Call], listing: ListRoute, table: Table) -> None:
    def print_table(target: Target, view: View, select: Select) -> None:
        show(target, view, lambda gateway: _rows(gateway, call, listing, table, select), select)

    print_table.__doc__ = call.__doc__
    command(app, table.command)(print_table)


def _rows(
    gateway: Gateway, call: type[Call], listing: ListRoute, table: Table, select: Select
) -> Listing:
    kind, chinese = table.rows
    of_kind = partial(
        Listing,
        kind=kind,
        chinese=chinese,
        columns=columns_of(listing.row, table),
        row=listing.row,
        name=table.name,
    )
    request = call(**listing.fixed)
    if "task_ids" in call.__struct_fields__:
        return listed(gateway, request, lambda rows: of_kind(rows=rows), select)
    return of_kind(rows=gateway.ask(request, Listed).rows)


def columns_of(row: type, table: Table) -> tuple[Column, ...]:
    """The columns of a table with rows of a type."""
    declared = table.columns
    if declared is None:
        declared = tuple(TableColumn(name) for name in get_type_hints(row))
    return tuple(_column(row, column) for column in declared)


def _column(row: type, column: TableColumn) -> Column:
    hint = get_type_hints(row)[column.key]
    is_amounts = hint is Amounts
    numeric = scalar_fields(row).get(column.key) in (int, float)
    return Column(
        heading=column.heading or column.key.replace("_", " "),
        key=column.key,
        show=_SHOWN[column.shown] if column.shown else _shown_as(row, column.key, hint),
        wide=column.wide,
        right=numeric and not column.key.endswith(_MOMENTS) and not column.wide,
        amounts=is_amounts,
        chinese=column.chinese,
    )


def _shown_as(row: type, key: str, hint: Any) -> Callable[[Any], str]:
    """How a cell shows the values of a field by its type and its name."""
    if hint is Amounts:
        return amounts
    if get_origin(hint) is dict and get_args(hint) == (str, str):
        return labels
    if get_origin(hint) is list:
        return names
    if named_by(row, key) is NameOf.NODE:
        return node
    if scalar_fields(row).get(key) is not float:
        return text
    if key.endswith(_MOMENTS):
        return local_time
    return duration if key.endswith(_DURATIONS) else number
