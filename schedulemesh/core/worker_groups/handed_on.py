"""Results of one group as the argument of another group's call: rows pass from worker to worker.

The calling process knows which rows each worker was given, and so which rows its result has; it never sees a
result. Each receiver gets the references of the results that it needs rows of, fetches them when it unpickles
its argument, and joins its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import ray
from ray import ObjectRef

from schedulemesh.core.worker_groups.array_trees import spelled
from schedulemesh.dispatch.arrays import equal, is_array, joined_rows
from schedulemesh.dispatch.batches import Sharded
from schedulemesh.dispatch.holdings import Shape, grid
from schedulemesh.dispatch.jagged import Jagged
from schedulemesh.dispatch.leaves import has_rows, rows_kind
from schedulemesh.dispatch.overlap import overlap
from schedulemesh.dispatch.pieces import Piece, pieces
from schedulemesh.dispatch.placement import Assign, Shard, Sharding
from schedulemesh.dispatch.trees import at_path, child, kind, rebuilt
from schedulemesh.domain.user_data import UserValue
from schedulemesh.errors import InvalidRequestError

#: The position of what is handed on in each result.
Keys = tuple[Any, ...]


class Take(msgspec.Struct, frozen=True):
    """Consecutive rows of one result."""

    #: Which of the results.
    result: int
    start: int
    stop: int


class HandedOn(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The results of a group, distributed to another."""

    #: By rank; ranks that get the same rows share one object, and a rank without rows has None.
    parts: tuple[UserValue, ...]
    #: What is needed to collect what the receivers return.
    sharded: Sharded


def handed_on(
    refs: Sequence[ObjectRef], keys: Keys, pattern: tuple[Sharding, Shape], destination: Sharding
) -> HandedOn:
    """Distributes results whose rows follow ``pattern`` by a sharding of their rows.

    ``refs`` are the results by rank; of each of them the value at ``keys`` is handed on. Raises
    ``InvalidRequestError`` if a sharding splits more than rows.
    """
    source, shape = pattern
    _check_rows(source, len(shape), "the results are")
    _check_rows(destination, 1, "the strategy is")
    rows = shape[0] if shape and isinstance(shape[0], int) else 0
    source_pieces = _row_pieces(source, len(shape), rows)
    target_pieces = _row_pieces(destination, 1, rows)
    if any(piece.size != piece.length for piece in target_pieces if piece is not None):
        raise InvalidRequestError(
            "the strategy pads, and rows of results have no value for padding; allowed is another uneven mode"
        )
    holders: dict[Piece, int] = {}
    for rank, piece in enumerate(source_pieces):
        if piece is not None:
            holders.setdefault(piece, rank)
    rows_by_piece: dict[Piece, RowsOf] = {}
    for piece in target_pieces:
        if piece is not None and piece not in rows_by_piece:
            rows_by_piece[piece] = _rows_of(refs, keys, holders, piece)
    parts = tuple(None if piece is None else rows_by_piece[piece] for piece in target_pieces)
    return HandedOn(parts=parts, sharded=Sharded(parts, destination, (rows,)))


class RowsOf:
    """Stands for rows of results of other workers: the receiver gets the rows themselves."""

    def __init__(
        self, refs: Sequence[ObjectRef], sizes: Sequence[int], takes: Sequence[Take], keys: Keys
    ) -> None:
        self._given = (list(refs), tuple(sizes), tuple(takes), keys)

    def __reduce__(self) -> tuple[object, ...]:
        return fetched_rows, self._given


def fetched_rows(
    refs: Sequence[ObjectRef], sizes: Sequence[int], takes: Sequence[Take], keys: Keys
) -> UserValue:
    """The rows of results, fetched and joined; ``sizes`` are the numbers of rows that the results have."""
    results = ray.get(list(refs))
    for key in keys:
        results = [child(result, key) for result in results]
    return joined(results, sizes, takes, keys)


def joined(
    results: Sequence[UserValue], sizes: Sequence[int], takes: Sequence[Take], path: Keys
) -> UserValue:
    """Rows of trees of results with the same keys. Values without rows must be the same in all of them."""
    first = results[0]
    _check_members(results, path)
    if isinstance(first, Mapping):
        return {
            key: joined([child(each, key) for each in results], sizes, takes, (*path, key))
            for key in first
        }
    if isinstance(first, tuple):
        members = range(len(first))
        return rebuilt(
            first,
            [
                joined([child(each, at) for each in results], sizes, takes, (*path, at))
                for at in members
            ],
        )
    if not has_rows(first):
        if all(equal(first, other) for other in results[1:]):
            return first
        raise InvalidRequestError(
            f"at {spelled(path)} the workers returned different values, {first!r} and others; only rows, and "
            f"values that are the same on all workers, are handed on: select the rows with pending[key]"
        )
    for result, size in zip(results, sizes, strict=True):
        if not has_rows(result) or len(result) != size:
            actual = f"{len(result)} rows" if has_rows(result) else type(result).__name__
            raise InvalidRequestError(
                f"at {spelled(path)} a worker returned {actual} for a part of {size} rows; allowed is one "
                f"row for each"
            )
    parts = [_rows(results[take.result], take) for take in takes]
    return at_path("/".join(map(str, path)), _joined_rows, parts)


def _check_members(results: Sequence[UserValue], path: Keys) -> None:
    """Raise ``InvalidRequestError`` if the results have different members, of which some would be lost."""
    first = _members(results[0])
    for other in results[1:]:
        if _members(other) != first:
            raise InvalidRequestError(
                f"at {spelled(path)} a worker returned {kind(results[0])}, another {kind(other)}; allowed "
                f"are results with the same keys: hand on the rows of one key with pending[key]"
            )


def _members(result: UserValue) -> set[Any] | int:
    """The keys of a dict, the length of a tuple; 0 for what is a leaf."""
    if isinstance(result, Mapping):
        return set(result)
    return len(result) if isinstance(result, tuple) else 0


def _joined_rows(parts: Sequence[UserValue]) -> UserValue:
    if len(parts) == 1:
        return parts[0]
    kinds = sorted(set(map(rows_kind, parts)))
    if len(kinds) > 1:
        raise InvalidRequestError(
            f"workers returned {' and '.join(kinds)}; allowed are rows of one kind: NumPy arrays, torch "
            f"tensors, lists or Jagged batches"
        )
    if isinstance(parts[0], Jagged):
        lengths = [length for part in parts for length in part.lengths]
        return Jagged(joined_rows([part.values for part in parts]), tuple(lengths))
    if is_array(parts[0]):
        return joined_rows(parts)
    return [row for part in parts for row in part]


def _rows(value: UserValue, take: Take) -> UserValue:
    if (take.start, take.stop) == (0, len(value)):
        return value
    if isinstance(value, Jagged):
        begin, end = value.offsets[take.start], value.offsets[take.stop]
        return Jagged(value.values[begin:end], value.lengths[take.start : take.stop])
    return value[take.start : take.stop]


def _rows_of(
    refs: Sequence[ObjectRef], keys: Keys, holders: Mapping[Piece, int], target: Piece
) -> RowsOf:
    """The rows of one piece, from the results of those that hold them."""
    sources = list(holders)
    met = overlap(sources, [target])
    if met.lacking:
        raise InvalidRequestError(
            "the strategy needs rows that no worker was given; allowed is a source without drop_last"
        )
    runs = sorted(
        (run.destination, at, run.source, run.length)
        for at, shared in met.sources[0].items()
        for run in shared
    )
    used = sorted({at for _, at, *_ in runs}) or [0]
    takes = [Take(used.index(at), start, start + length) for _, at, start, length in runs]
    return RowsOf(
        [refs[holders[sources[at]]] for at in used],
        [sources[at].size for at in used],
        takes or [Take(0, 0, 0)],
        keys,
    )


def _check_rows(sharding: Sharding, ndim: int, what: str) -> None:
    for name, how in sharding.placements:
        if isinstance(how, (Shard, Assign)) and how.dim not in (0, -ndim):
            raise InvalidRequestError(
                f"{what} split along dim {how.dim} over {name}; results are handed on by rows: allowed is "
                f"dim 0, or collect() and another call"
            )


def _row_pieces(sharding: Sharding, ndim: int, rows: int) -> list[Piece | None]:
    """The rows of each rank; None: it has none."""
    ndim = max(ndim, 1)
    row_pieces = pieces(rows, sharding.cuts(0, ndim))
    return [None if cell is None else row_pieces[cell[0]] for cell in grid(sharding, ndim).cells]
