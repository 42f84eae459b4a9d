"""What a given value really is. ``isinstance`` believes the class that an object claims, as mocks do."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeGuard, TypeVar

Kind = TypeVar("Kind")


def is_a(value: object, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether the value's own type is this, a subclass of it, or registered as one."""
    return issubclass(type(value), kind)


def is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether the value is a list or a tuple."""
    return is_a(value, list) or is_a(value, tuple)


def without_enum(value: object) -> object:
    """The value of an Enum's member; anything else as it is."""
    return value._value_ if is_a(value, Enum) else value
