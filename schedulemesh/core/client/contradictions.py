"""Refuses settings that contradict those of the living scheduler, instead of silently not using them."""

from __future__ import annotations

import os
import re

import msgspec

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


def refuse_contradictions(settings: SchedulerSettings, living: SchedulerSettings) -> None:
    """Raise SchedulerExistsError where anything was given that the living scheduler was not made with."""
    for field in _FIELDS:
        new_value, living_value = getattr(settings.public(), field), getattr(living, field)
        if new_value == getattr(_DEFAULTS, field) or _same(field, new_value, living_value):
            continue
        raise SchedulerExistsError(
            f"scheduler {settings.name!r} is alive with {field} {_shown(field, living_value)}, but "
            f"{_shown(field, new_value)} was given; leave {field} out to attach to it, shut it down first, "
            "or choose another name"
        )


def _same(field: str, new_value: object, living_value: object) -> bool:
    if field == "state_path" and isinstance(new_value, str) and isinstance(living_value, str):
        return new_value == living_value or os.path.realpath(new_value) == os.path.realpath(
            living_value
        )
    if isinstance(new_value, HttpSettings) and isinstance(living_value, HttpSettings):
        # The folder is that of the user who started it.
        return msgspec.structs.replace(new_value, folder=living_value.folder) == living_value
    return new_value == living_value


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
