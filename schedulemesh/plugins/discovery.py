"""Finds plugins by entry point and by import path ``module:Class``."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec

from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins.alerting import AlertReceiver
from schedulemesh.plugins.dispatch import DispatchStrategyPlugin
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin

SCHEDULING_GROUP = "schedulemesh.scheduling_strategies"
DISPATCH_GROUP = "schedulemesh.dispatch_strategies"
RECEIVER_GROUP = "schedulemesh.alert_receivers"

_BASES: dict[str, type] = {
    SCHEDULING_GROUP: SchedulingStrategyPlugin,
    DISPATCH_GROUP: DispatchStrategyPlugin,
    RECEIVER_GROUP: AlertReceiver,
}
#: What errors call the plugins of each group.
_NOUNS = {
    SCHEDULING_GROUP: "strategy",
    DISPATCH_GROUP: "strategy",
    RECEIVER_GROUP: "receiver of alerts",
}
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class InstalledPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that a distribution registers as an entry point."""

    name: str
    #: Its entry point group.
    group: str
    #: Its import path.
    path: str
    #: The distribution that contains it; empty: unknown.
    distribution: str = ""


def installed(group: str) -> list[InstalledPlugin]:
    """The installed plugins of this entry point group, sorted by name."""
    points: Iterable[EntryPoint] = entry_points(group=group)
    by_name = {
        point.name: InstalledPlugin(
            name=point.name,
            group=group,
            path=point.value,
            distribution=point.dist.name if point.dist is not None else "",
        )
        for point in points
    }
    return [by_name[name] for name in sorted(by_name)]


def see_folders(folders: Sequence[str]) -> None:
    """Add these folders to the import path of this process."""
    for folder in folders:
        if folder not in sys.path and Path(folder).is_dir():
            sys.path.append(folder)


def is_path(text: str) -> bool:
    """Whether this has the form of an import path ``module:Class``."""
    return _PATH.fullmatch(text) is not None


def load_class(path: str, group: str) -> type[Any]:
    """The class at an import path.

    Raises InvalidRequestError if there is none, if it is not a plugin of this group, or if importing the
    module raises; the message then contains that error.
    """
    module_name, _, attributes = path.partition(":")
    try:
        loaded: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            loaded = getattr(loaded, attribute)
    except Exception as error:
        raise InvalidRequestError(
            f"the {_NOUNS[group]} {path!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    base = _BASES[group]
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        raise InvalidRequestError(
            f"{path!r} is {loaded!r}, which is not a subclass of {base.__name__}"
        )
    return loaded


def resolve(name: str, group: str) -> str:
    """The import path of a plugin, given by that path or by the name of an installed plugin.

    Raises InvalidRequestError, with the known names, if there is none.
    """
    if is_path(name):
        return name
    names = {plugin.name: plugin.path for plugin in installed(group)}
    if name not in names:
        installed_names = ", ".join(names) or "none"
        built_in = "" if group == RECEIVER_GROUP else "a built-in one, "
        raise InvalidRequestError(
            f"there is no {_NOUNS[group]} {name!r}; installed ones are: {installed_names}. Name {built_in}an "
            "installed one, or an import path 'module:Class'"
        )
    return names[name]
