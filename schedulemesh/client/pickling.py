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
import re
import struct
import uuid
from collections.abc import Callable, Sized
from types import FunctionType
from typing import Any, ClassVar

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


#: Elements and bytes that constructors may be given beyond those that the pickled bytes have: some values
#: are shared.
_SPARE = 1024 * 1024
#: Digits of the numbers of a fraction.
_MAX_DIGITS = 10_000


class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001  # the public one is that of C
    """The unpickler of Python, not that of C, which reserves whatever memory the bytes ask for.

    Values that take much more memory than their bytes are refused: what honest bytes describe is in them.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(
        pickle._Unpickler.dispatch  # noqa: SLF001  # as above
    )
    #: Of the unpickler: what is built, and the functions that add to it and that read bytes.
    stack: list[Any]
    append: Callable[[UserValue], None]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        #: Bytes that are not read yet are no more than this.
        self._bytes = len(data)
        #: Elements and bytes that constructors may still be given.
        self._remaining = len(data) + _SPARE

    def load_reduce(self) -> None:
        """Call the constructor of a value."""
        arguments = self.stack.pop()
        kind = self.stack[-1]
        self._check(kind, arguments)
        self.stack[-1] = kind(*arguments)

    dispatch[pickle.REDUCE[0]] = load_reduce

    def load_newobj(self) -> None:
        """Make a value of a class without a constructor."""
        arguments = self.stack.pop()
        kind = self.stack.pop()
        self._check(kind, arguments)
        self.append(kind.__new__(kind, *arguments))

    dispatch[pickle.NEWOBJ[0]] = load_newobj

    def load_build(self) -> None:
        """Set the state of a value; classes have none."""
        if isinstance(self.stack[-2], type):
            raise NotPlainError("it changes a class, and only plain data is loaded here")
        self._build(self)

    _build = staticmethod(dispatch[pickle.BUILD[0]])
    dispatch[pickle.BUILD[0]] = load_build

    def load_setitem(self) -> None:
        """Add an entry to a dict; a slice of a list could become anything."""
        value, key = self.stack.pop(), self.stack.pop()
        self._add_entries([key, value])

    dispatch[pickle.SETITEM[0]] = load_setitem

    def load_setitems(self) -> None:
        """Add entries to a dict."""
        self._add_entries(self.pop_mark())

    dispatch[pickle.SETITEMS[0]] = load_setitems

    def _add_entries(self, keys_and_values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            self._refuse()
        target.update(zip(keys_and_values[::2], keys_and_values[1::2], strict=True))

    def load_bytearray8(self) -> None:
        """Bytes that can be changed."""
        (size,) = struct.unpack("<Q", self.read(8))
        if size > self._bytes:
            raise pickle.UnpicklingError(f"a bytearray of {size:,} bytes is cut off")
        self.append(bytearray(self.read(size)))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def _refuse(self) -> None:
        raise NotPlainError("it is in a form that pickle does not give to plain data")

    for _code in (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4):
        dispatch[_code[0]] = _refuse

    def _check(self, kind: object, arguments: tuple[UserValue, ...]) -> None:
        """Raise NotPlainError for what is no class of plain data, and for arguments of which it would make
        more than the bytes have.
        """
        if not isinstance(kind, type):
            raise NotPlainError(f"it calls {shown(kind)}, and only plain data is loaded here")
        if kind is fractions.Fraction and not all(map(_is_short, arguments)):
            raise NotPlainError("it has a fraction of numbers that are too large")
        sizes = [len(value) for value in arguments if isinstance(value, Sized)]
        if kind is bytearray:
            sizes += [value for value in arguments if isinstance(value, int)]
        self._remaining -= sum(sizes)
        if self._remaining < 0:
            raise NotPlainError("its values take much more memory than its bytes")

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
    value: UserValue = _PlainUnpickler(data).load()  # it builds plain data only
    return value


def _is_short(number: UserValue) -> bool:
    """Whether this is a number of a fraction that is handled in no time; a text has digits and a slash only,
    because an exponent may stand for any number of them.
    """
    if isinstance(number, str):
        return len(number) <= _MAX_DIGITS and re.fullmatch(r"-?\d+(/\d+)?", number) is not None
    return isinstance(number, int) and number.bit_length() <= 3 * _MAX_DIGITS


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
