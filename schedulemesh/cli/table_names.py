"""The names of the commands that are declared with calls, by which they are found, and help lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedulemesh.api.call import Call
    from schedulemesh.api.routes import ListRoute
    from schedulemesh.api.tables import Table

#: By its name the heading below which help lists a command, and the module of ``api`` that has its call.
DECLARED: Mapping[str, tuple[str, str]] = {
    # begin written commands
    "shares": ("Understand", "pools"),
    "budgets": ("Understand", "pools"),
    "states": ("Look", "states"),
    # end written
}
#: Those modules.
MODULES_OF_CALLS = tuple(dict.fromkeys(module for _, module in DECLARED.values()))


def declared_tables(
    modules: Iterable[str] = MODULES_OF_CALLS,
) -> Iterator[tuple[type[Call], ListRoute, Table]]:
    """The calls in these modules of ``schedulemesh.api`` that declare a table, each with its list."""
    from schedulemesh.api.call import declared_by

    for module in modules:
        for call in declared_by(import_module(f"schedulemesh.api.{module}")):
            for listing in call.listings:
                if listing.table is not None:
                    yield call, listing, listing.table
