"""``schedulemesh plugins``: lists built-in and installed strategies."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from schedulemesh.config.policy import VICTIM_ORDERS
from schedulemesh.dispatch import strategies as dispatch
from schedulemesh.engine.placement.scoring import BUILT_IN
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins.discovery import (
    DISPATCH_GROUP,
    SCHEDULING_GROUP,
    InstalledPlugin,
    installed,
    load_class,
)

_ORDERS = {
    "score": "Highest score first; the default.",
    "priority_first": "Lowest priority first, whatever time remains.",
    "least_lost_work": "Fewest seconds since start or saved state first.",
}


def show() -> int:
    """Print built-in and installed strategies; 1 where an installed one cannot be loaded."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("name", "for", "from"):
        table.add_column(column, overflow="fold")
    table.add_column("what it does", overflow="fold", ratio=1)
    for name, strategy in BUILT_IN.items():
        table.add_row(name, "node, pool", "built in", _first_line(strategy))
    for order in VICTIM_ORDERS:
        table.add_row(order, "victims", "built in", _ORDERS[order])
    for name, cut in dispatch.BUILT_IN.items():
        table.add_row(name, "dispatch", "built in", _first_line(cut))
    broken = False
    for group, kind, load in _INSTALLED:
        for found in installed(group):
            message, fine = _judged(found, load)
            broken = broken or not fine
            table.add_row(found.name, kind, found.distribution or found.path, message)
    Console().print(table)
    return int(broken)


def _scheduling(found: InstalledPlugin) -> object:
    make: Callable[[], object] = load_class(found.path, found.group)
    return make()


def _dispatch(found: InstalledPlugin) -> object:
    return dispatch.installed_strategy(found.name)


#: Groups of entry points, what they are called in the table, and how the one who uses them loads them.
_INSTALLED: tuple[tuple[str, str, Callable[[InstalledPlugin], object]], ...] = (
    (SCHEDULING_GROUP, "scheduling", _scheduling),
    (DISPATCH_GROUP, "dispatch", _dispatch),
)


def _judged(found: InstalledPlugin, load: Callable[[InstalledPlugin], object]) -> tuple[str, bool]:
    """The description of an installed strategy, or why it cannot be loaded; and whether it can."""
    try:
        return _first_line(load(found)) or found.path, True
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever its module raises is shown
        message = str(error) if isinstance(error, InvalidRequestError) else repr(error)
        return f"BROKEN: {message}", False


def _first_line(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "").partition("\n")[0]
