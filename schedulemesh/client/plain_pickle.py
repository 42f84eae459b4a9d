"""Loads pickled values that are plain data, and nothing else: loading runs no code of whoever pickled them.

Results and saved states are pickled by processes of users in the cluster. A client outside of it, on a laptop
or in a pipeline, must not run what they hold; see docs/decisions/plain-data-over-http.md.
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

from schedulemesh import errors
from schedulemesh.domain.user_data import UserValue

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
