"""Converts metrics to plain values: numbers, strings, bools, and lists and dicts of them.

Values reported by user code are converted in its own process, so that they can be stored, shown and sent
without loading any of its classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from schedulemesh.protocol.agents import writable

#: The maximum size of one report in bytes; a larger one is not sent.
MAX_METRICS_BYTES = 64 * 1024
#: An array of at most this many elements is converted to numbers, a larger one to a string.
_ELEMENTS = 1000
#: The number of nesting levels that are kept; deeper values are converted to strings.
_LEVELS = 16


def encode_metrics(metrics: Mapping[Any, Any]) -> bytes:
    """Encode metrics as MessagePack, with all values converted."""
    return msgspec.msgpack.encode(_plain_dict(metrics, _LEVELS))


def decode_metrics(data: bytes | msgspec.Raw) -> dict[str, Any]:
    """Decode metrics. Raises MsgspecError, UnicodeDecodeError or RecursionError for other bytes."""
    return msgspec.msgpack.decode(data, type=dict[str, Any])


def _plain(value: Any, levels: int) -> Any:
    """The value as a type that MessagePack supports; other values are converted to strings."""
    direct = _DIRECT.get(type(value))
    if direct is not None:
        return direct(value, levels)
    try:
        return _converted(value, levels)
    except Exception:  # noqa: BLE001  # user code raises anything
        return f"a {type(value).__name__} that cannot be shown"


def _plain_int(value: int, _levels: int) -> int | float | str:
    if -(2**63) <= value < 2**64:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _plain_text(value: str, _levels: int) -> str:
    return value if value.isascii() and len(value) <= _ELEMENTS else writable(value)


def _plain_dict(value: Mapping[Any, Any], levels: int) -> dict[str, Any] | str:
    if not levels:
        return writable(str(value))
    return {
        key if type(key) is str and key.isascii() else _key(key): _plain(item, levels - 1)
        for key, item in value.items()
    }


def _plain_list(value: Any, levels: int) -> list[Any] | str:
    if not levels:
        return writable(str(value))
    return [_plain(item, levels - 1) for item in value]


def _as_it_is(value: Any, _levels: int) -> Any:
    return value


#: Conversions of values of exactly these types.
_DIRECT: dict[type, Callable[[Any, int], Any]] = {
    bool: _as_it_is,
    float: _as_it_is,
    type(None): _as_it_is,
    int: _plain_int,
    str: _plain_text,
    dict: _plain_dict,
    list: _plain_list,
    tuple: _plain_list,
}


#: Instances of subclasses are converted to these exact types.
_EXACT: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (float, float.__float__),
    (int, int.__int__),
    (str, str.__str__),
)


def _converted(value: Any, levels: int) -> Any:
    """Convert a value of another type: an Enum member, a subclass, a scalar or an array of a library."""
    if isinstance(value, Enum):
        return _plain(value.value, levels - 1) if levels else writable(str(value))
    for kind, exact in _EXACT:
        if isinstance(value, kind):
            return _plain(exact(value), levels)
    if isinstance(value, Mapping):
        return _plain_dict(value, levels)
    if isinstance(value, set | frozenset):
        return _plain_list(value, levels)
    if callable(getattr(value, "tolist", None)) and not isinstance(value, type):
        return _array(value, levels)
    return writable(str(value))


def _array(value: Any, levels: int) -> Any:
    """Convert a scalar or array of NumPy, torch and the like: to numbers, or to a string if it is large."""
    if math.prod(value.shape) > _ELEMENTS:
        return writable(f"{type(value).__name__} of shape {tuple(value.shape)}")
    numbers = value.tolist()
    return _plain(numbers, levels) if type(numbers) in _DIRECT else writable(str(value))


def _key(key: Any) -> str:
    plain = _plain(key, 1)
    return plain if type(plain) is str else str(plain)
