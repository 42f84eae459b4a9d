"""How clients load and dump the values of users: results and saved states.

They are pickled by processes of users in the cluster. A client outside of it, on a laptop or in a pipeline,
must not run what they hold, so it loads plain data and nothing else, which runs no code of whoever pickled
it; see docs/decisions/plain-data-over-http.md. Clients over Ray load everything.
"""

from __future__ import annotations

import builtins
import collections
import datetime as dt
import decimal
import fractions
import io
import pathlib
import pickle
import uuid
from collections.abc import Callable
from types import FunctionType
from typing import Any

import msgspec

from schedulemesh import errors
from schedulemesh.domain.user_data import UserValue
from schedulemesh.errors import InvalidRequestError, shown

#: Loads a pickled value.
Load = Callable[[bytes], UserValue]


class Pickling(msgspec.Struct, frozen=True, kw_only=True):
    """How a client loads and dumps values of users."""

    #: The result of a task, or what its run raised; raises where it cannot be loaded.
    load_result: Load
    #: A saved state, or a part of one.
    load_state: Load
    #: A saved state as bytes; raises InvalidRequestError where it cannot be pickled.
    dump_state: Callable[[UserValue], bytes]


#: The classes whose values are plain data, beside what pickle itself builds.
_CLASSES: tuple[type, ...] = (
    bytearray,
    collections.OrderedDict,
    collections.deque,
    complex,
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    dt.timezone,
    decimal.Decimal,
    fractions.Fraction,
    frozenset,
    pathlib.PurePosixPath,
    range,
    set,
    slice,
    uuid.UUID,
)
_BY_NAME = {(kind.__module__, kind.__name__): kind for kind in _CLASSES}
#: Paths, which another version of Python may have in another module. Those of the cluster are none of here.
_BY_NAME |= {
    (module, name): pathlib.PurePosixPath
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath")
}
#: The modules whose exceptions are built.
_EXCEPTIONS = {"builtins": builtins, errors.__name__: errors}


class NotPlainError(ValueError):
    """A pickled value has something that is no plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        """The class of this name. Raises NotPlainError where its values are no plain data."""
        kind = _BY_NAME.get((module, name))
        if kind is None and module in _EXCEPTIONS:
            kind = vars(_EXCEPTIONS[module]).get(name)
        is_plain = (module, name) in _BY_NAME or (
            isinstance(kind, type) and issubclass(kind, Exception)
        )
        if kind is None or not is_plain:
            raise NotPlainError(f"it has {module}.{name}, and only plain data is loaded here")
        return kind


def load_plain(data: bytes) -> UserValue:
    """A pickled value of plain data. Raises NotPlainError, and what pickle raises for bytes that are none."""
    return _PlainUnpickler(io.BytesIO(data)).load()  # it builds plain data only


class PickledValue:
    """A value that is not loaded here, because it is more than plain data. ``restore_task`` takes it as it
    is, and whoever gets it there loads it.
    """

    def __init__(self, data: bytes) -> None:
        #: The value, pickled.
        self.data = data

    def __repr__(self) -> str:
        return f"<a pickled value of {len(self.data):,} bytes that is no plain data>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PickledValue) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __reduce__(self) -> tuple[Load, tuple[bytes]]:
        return pickle.loads, (self.data,)


def _load_state(data: bytes) -> UserValue:
    """A part of a saved state. What is no plain data stays pickled."""
    try:
        return load_plain(data)
    except Exception:  # noqa: BLE001  # malformed pickles raise almost anything
        return PickledValue(data)


class _Pickler(pickle.Pickler):
    """Refuses what only this process has: another one would not find it."""

    def reducer_override(self, value: UserValue) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise InvalidRequestError(
                f"the saved state has {shown(value)} of this program, which the cluster does not have; over "
                "HTTP a state is plain data: numbers, texts, lists and dicts"
            )
        return NotImplemented


def _dump_state(value: UserValue) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.DEFAULT_PROTOCOL).dump(value)
    except InvalidRequestError:
        raise
    except Exception as error:
        raise InvalidRequestError(
            f"the saved state cannot be pickled: {shown(error)}. Over HTTP it is plain data: numbers, texts, "
            "lists and dicts"
        ) from error
    return buffer.getvalue()


#: Of clients over HTTP.
PLAIN = Pickling(load_result=load_plain, load_state=_load_state, dump_state=_dump_state)
