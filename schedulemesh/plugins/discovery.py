"""Finding plugins: by entry point, and by import path ``module:Class``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins.dispatch import DispatchStrategyPlugin
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin

SCHEDULING_GROUP = "schedulemesh.scheduling_strategies"
DISPATCH_GROUP = "schedulemesh.dispatch_strategies"

_BASES: dict[str, type] = {
    SCHEDULING_GROUP: SchedulingStrategyPlugin,
    DISPATCH_GROUP: DispatchStrategyPlugin,
}
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One installed plugin."""

    name: str
    group: str
    #: Its import path.
    path: str
    #: The distribution that brings it; empty: unknown.
    distribution: str = ""


def installed(group: str) -> list[Found]:
    """The plugins of this group that are installed here, by name."""
    points: Iterable[EntryPoint] = entry_points(group=group)
    found = {
        point.name: Found(
            name=point.name,
            group=group,
            path=point.value,
            distribution=point.dist.name if point.dist is not None else "",
        )
        for point in points
    }
    return [found[name] for name in sorted(found)]


def is_path(text: str) -> bool:
    """Whether this reads as an import path ``module:Class``."""
    return _PATH.fullmatch(text) is not None


def load_class(path: str, group: str) -> type[Any]:
    """The class at an import path.

    Raises InvalidRequestError where nothing is there, or no plugin of this group; whatever the module
    itself raises is told in it.
    """
    module_name, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        raise InvalidRequestError(
            f"the strategy {path!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    base = _BASES[group]
    if not isinstance(found, type) or not issubclass(found, base):
        raise InvalidRequestError(f"{path!r} is {found!r}, which is no class under {base.__name__}")
    return found


def resolve(name: str, group: str) -> str:
    """The import path that a name stands for: itself, or that of the installed plugin of this name.

    Raises InvalidRequestError with the names that there are.
    """
    if is_path(name):
        return name
    names = {found.name: found.path for found in installed(group)}
    if name not in names:
        known = ", ".join(names) or "none"
        raise InvalidRequestError(
            f"there is no strategy {name!r}; installed ones are: {known}. Name a built-in one, an "
            "installed one, or an import path 'module:Class'"
        )
    return names[name]
