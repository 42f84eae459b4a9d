"""The spec of a batch that is split by rows without a spec of its own: rows are split, scalars replicated."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from schedulemesh.dispatch.arrays import is_array
from schedulemesh.dispatch.leaves import has_rows
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.dispatch.trees import Spec, step
from schedulemesh.errors import InvalidRequestError

#: What is replicated without having been asked for. NumPy's scalars are registered as numbers.
_SCALARS = (numbers.Number, str, bytes, Enum, type(None))


def spec_by_rows(data: Any, sharding: Sharding) -> Spec:
    """The spec that splits all leaves with rows by this sharding, and replicates scalars.

    Raises ``InvalidRequestError`` with the paths if leaves have different numbers of rows, or if a value is
    neither rows nor a scalar, such as a generator, a ``range`` or a table of another library.
    """
    path_by_rows: dict[int, str] = {}
    for path, rows in _row_counts(data, ""):
        path_by_rows.setdefault(rows, path)
    if len(path_by_rows) > 1:
        counts = ", ".join(
            f"{path or 'the data'} has {rows}" for rows, path in path_by_rows.items()
        )
        raise InvalidRequestError(
            f"the leaves have different numbers of rows: {counts}; allowed is one number, or a spec "
            f"that says for each leaf how it is split (Sharding.of(layout) replicates it)"
        )
    return _spec(data, sharding)


def _row_counts(data: Any, path: str) -> Iterator[tuple[str, int]]:
    """Path and number of rows of each leaf that has rows."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _row_counts(value, step(path, key))
    elif isinstance(data, tuple):
        for at, value in enumerate(data):
            yield from _row_counts(value, step(path, at))
    elif has_rows(data):
        yield path, len(data)
    elif not is_array(data) and not isinstance(data, _SCALARS):
        raise InvalidRequestError(
            f"at {path or 'the top'} lies a {type(data).__name__}, which has no known rows; allowed are "
            f"arrays, tensors, Jagged and lists as rows, scalars, and dicts and tuples of them. Convert it, "
            f"for example with list(…), or give a spec with Sharding.of(layout) for it, which replicates it"
        )


def _spec(data: Any, sharding: Sharding) -> Spec:
    if isinstance(data, Mapping):
        return {key: _spec(value, sharding) for key, value in data.items()}
    if isinstance(data, tuple):
        return [_spec(value, sharding) for value in data]
    return sharding if has_rows(data) else Sharding(layout=sharding.layout)
