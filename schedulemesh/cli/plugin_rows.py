"""The rows of the command plugins: built-in strategies, and installed ones with what loading them gave."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from schedulemesh.dispatch import strategies as dispatch
from schedulemesh.engine.state.class_order import VICTIM_RANKINGS
from schedulemesh.engine.state.scoring import BUILT_IN
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins.discovery import (
    DISPATCH_GROUP,
    SCHEDULING_GROUP,
    InstalledPlugin,
    installed,
    load_class,
)


def plugin_rows() -> tuple[list[dict[str, str]], bool]:
    """The strategies, and whether all of them can be loaded."""
    rows, all_fine = _built_in(), True
    for group, kind, load in _INSTALLED:
        for plugin in installed(group):
            description, fine = _judged(plugin, load)
            all_fine = all_fine and fine
            rows.append(_row(plugin.name, kind, description, plugin.distribution or plugin.path))
    return rows, all_fine


def _built_in() -> list[dict[str, str]]:
    return [
        *(_row(name, "node, pool", _first_line(strategy)) for name, strategy in BUILT_IN.items()),
        *(_row(order, "victims", rank.summary) for order, rank in VICTIM_RANKINGS.items()),
        *(_row(name, "dispatch", _first_line(cut)) for name, cut in dispatch.BUILT_IN.items()),
    ]


def _row(name: str, what: str, description: str, source: str = "built in") -> dict[str, str]:
    return {"name": name, "for": what, "from": source, "description": description}


def _scheduling(plugin: InstalledPlugin) -> object:
    make: Callable[[], object] = load_class(plugin.path, plugin.group)
    return make()


def _dispatch(plugin: InstalledPlugin) -> object:
    return dispatch.installed_strategy(plugin.name)


#: Groups of entry points, what they are called in the table, and how the one who uses them loads them.
_INSTALLED: tuple[tuple[str, str, Callable[[InstalledPlugin], object]], ...] = (
    (SCHEDULING_GROUP, "scheduling", _scheduling),
    (DISPATCH_GROUP, "dispatch", _dispatch),
)


def _judged(plugin: InstalledPlugin, load: Callable[[InstalledPlugin], object]) -> tuple[str, bool]:
    """The description of an installed strategy, or why it cannot be loaded; and whether it can."""
    try:
        return _first_line(load(plugin)) or plugin.path, True
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever its module raises is shown
        message = str(error) if isinstance(error, InvalidRequestError) else repr(error)
        return f"BROKEN: {message}", False


def _first_line(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "").partition("\n")[0]
