"""Dicts and lists that users give, copied to exact ``dict`` and ``list`` of plain data."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

from schedulemesh.domain.kinds import is_a, is_list
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import as_number
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: Levels of dicts and lists within each other.
_MAX_DEPTH = 20
#: Whole numbers that every encoding holds.
_LEAST, _MOST = -(2**63), 2**64 - 1


def as_items(value: object, what: str, expected: str) -> list[tuple[Any, Any]]:
    """The keys and values of a mapping. Raises InvalidRequestError if it is none or cannot be read."""
    if type(value) is dict:
        return list(value.items())
    if _is_mapping(value):
        try:
            return [(key, value[key]) for key in value]
        except Exception as error:
            raise _unreadable(what, error) from error
    raise InvalidRequestError(f"{what} must be {expected}, not {shown(value)}")


def as_fields(
    value: object, what: str, allowed: Collection[str], expected: str
) -> dict[str, object]:
    """The fields of a mapping that are not None. Raises InvalidRequestError as ``as_named_items``."""
    fields = as_named_items(value, what, allowed, expected)
    return {name: element for name, element in fields.items() if element is not None}


def as_named_items(
    value: object, what: str, allowed: Collection[str], expected: str
) -> dict[str, object]:
    """The values of a mapping by their names, in which None is a value. Raises InvalidRequestError as
    ``as_items``, and for a key that is not allowed.
    """
    items: dict[str, object] = {}
    for key, element in as_items(value, what, expected):
        name = as_text(key)
        if name is None or name not in allowed:
            near = nearest(name or "", allowed)
            raise InvalidRequestError(
                f"{what} has {shown(key)}{near}; it takes {', '.join(allowed)}"
            )
        items[name] = element
    return items


def as_elements(value: object, what: str, expected: str, *, sets: bool = False) -> list[Any]:
    """The elements of a list or tuple, with ``sets`` also of a set. Raises InvalidRequestError as above."""
    if not (is_list(value) or (sets and (is_a(value, set) or is_a(value, frozenset)))):
        raise InvalidRequestError(f"{what} must be {expected}, not {shown(value)}")
    try:
        return list(value)
    except Exception as error:
        raise _unreadable(what, error) from error


def plain_data(value: object, what: str, depth: int = _MAX_DEPTH) -> Any:
    """A copy made of dicts, lists, texts, finite numbers, True, False and None alone.

    Raises InvalidRequestError, naming the place, for anything else.
    """
    if value is None or is_a(value, bool):
        return value
    text = as_text(value)
    if text is not None:
        return _encodable(text, what)
    number = as_number(value)
    if number is not None:
        return _bounded(number, what)
    if depth <= 0:
        raise InvalidRequestError(f"{what} has more than {_MAX_DEPTH} levels")
    if _is_mapping(value):
        items = as_items(value, what, "a dict")
        return {
            _key(key, what): plain_data(element, f"{what}[{shown(key)}]", depth - 1)
            for key, element in items
        }
    if is_list(value):
        elements = as_elements(value, what, "a list")
        return [
            plain_data(element, f"{what}[{i}]", depth - 1) for i, element in enumerate(elements)
        ]
    raise InvalidRequestError(
        f"{what} is {shown(value)}; it is kept, so only plain data (numbers, texts, True, False, None, "
        "lists and dicts) is allowed"
    )


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return issubclass(type(value), Mapping)


def _key(key: object, what: str) -> str:
    text = as_text(key)
    if text is None:
        raise InvalidRequestError(f"{what} has the key {shown(key)}, which is no text")
    return _encodable(text, what)


def _encodable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{what} holds {shown(text)}, which is no valid text") from None
    return text


def _bounded(number: float, what: str) -> int | float:
    finite = _LEAST <= number <= _MOST if isinstance(number, int) else math.isfinite(number)
    if not finite:
        raise InvalidRequestError(
            f"{what} is {shown(number)}; numbers must be finite and fit into 64 bits"
        )
    return number


def _unreadable(what: str, error: Exception) -> InvalidRequestError:
    return InvalidRequestError(f"{what} cannot be read: {type(error).__name__}: {shown(error)}")
