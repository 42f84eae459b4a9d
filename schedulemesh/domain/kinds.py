"""What a given value really is. ``isinstance`` believes the class that an object claims, as mocks do."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeGuard, TypeVar

Kind = TypeVar("Kind")


def is_a(given: object, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether the value's own type is this, a subclass of it, or registered as one."""
    return issubclass(type(given), kind)


def is_list(given: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether the value is a list or a tuple."""
    return is_a(given, list) or is_a(given, tuple)


def without_enum(given: object) -> object:
    """The value of an Enum's member; anything else as it is."""
    return given._value_ if is_a(given, Enum) else given
