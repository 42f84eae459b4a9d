"""Refuses settings that contradict those of the living scheduler, instead of silently not using them."""

from __future__ import annotations

import os
import re

from schedulemesh.config.auth import AUTH, AuthSettings
from schedulemesh.config.http import HttpSettings
from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.errors import SchedulerExistsError

#: The settings of a scheduler beside its name; one that has its default contradicts nothing.
_FIELDS = (
    "state_path",
    "node_strategy",
    "pool_strategy",
    "strategies",
    "health_interval_s",
    "journal",
    "http",
    "alerts",
    "auth",
)
_DEFAULTS = SchedulerSettings(name="")
_PASSWORD = re.compile(r"(://[^:/@]*):[^@]*@")


def refuse_contradictions(given: SchedulerSettings, living: SchedulerSettings) -> None:
    """Raise SchedulerExistsError where anything was given that the living scheduler was not made with."""
    for field in _FIELDS:
        wanted, found = getattr(given.public(), field), getattr(living, field)
        if wanted == getattr(_DEFAULTS, field) or _same(field, wanted, found):
            continue
        raise SchedulerExistsError(
            f"scheduler {given.name!r} is alive with {field} {_shown(field, found)}, but "
            f"{_shown(field, wanted)} was given; leave {field} out to attach to it, shut it down first, or "
            "choose another name"
        )


def _same(field: str, wanted: object, found: object) -> bool:
    if field == "state_path" and isinstance(wanted, str) and isinstance(found, str):
        return wanted == found or os.path.realpath(wanted) == os.path.realpath(found)
    if isinstance(wanted, HttpSettings) and isinstance(found, HttpSettings):
        # The folder is that of the user who started it.
        return (wanted.host, wanted.port) == (found.host, found.port)
    return wanted == found


def without_password(address: str) -> str:
    """The address of a journal as it may be shown: the password in a database's URL is hidden."""
    return _PASSWORD.sub(r"\1:***@", address)


def _shown(field: str, value: object) -> str:
    if field == "state_path":
        return "none" if value is None else repr(without_password(str(value)))
    if isinstance(value, AuthSettings):
        return repr(AUTH) if value.required else "none"
    if field == "strategies" and isinstance(value, tuple):
        return "[" + ", ".join(ref.name for ref in value) + "]"
    return repr(value)
