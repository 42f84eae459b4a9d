"""Splits one value by a sharding and joins the parts again: arrays, rows, jagged batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedulemesh.dispatch.arrays import (
    blank,
    check_unmasked,
    is_array,
    is_torch,
    put,
    take,
    views,
)
from schedulemesh.dispatch.holdings import Shape, first, grid, holdings, runs, without_dropped
from schedulemesh.dispatch.jagged import Jagged, cut_jagged, join_jagged
from schedulemesh.dispatch.pieces import Piece
from schedulemesh.dispatch.placement import Scalar, Sharding
from schedulemesh.errors import InvalidRequestError


def shape_of(leaf: Any) -> Shape:
    """The shape of a value: that of an array, the length of a list or tuple; empty for other values."""
    if isinstance(leaf, Jagged):
        return (len(leaf), leaf.lengths)
    if is_array(leaf):
        return tuple(leaf.shape)
    return (len(leaf),) if isinstance(leaf, (list, tuple)) else ()


def has_rows(value: Any) -> bool:
    """Whether a value can be split: an array with dims, a jagged batch, a list or tuple of rows."""
    if is_array(value):
        return bool(value.shape)
    return isinstance(value, (Jagged, list, tuple))


def rows_kind(value: Any) -> str:
    """What the rows of a value are; only rows of one kind are joined."""
    if isinstance(value, Jagged):
        return "a Jagged"
    if is_array(value):
        return "a torch tensor" if is_torch(value) else "a NumPy array"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def cut(leaf: Any, sharding: Sharding) -> tuple[Any, ...]:
    """The part of each rank, None if it holds nothing; replicas share one object.

    Parts of arrays are views if they are one run per dim and not padded; rows are never copied.
    """
    if isinstance(leaf, Jagged):
        return cut_jagged(leaf, sharding)
    if not sharding.is_whole:
        check_unmasked(leaf)
    shape = _sizes(shape_of(leaf))
    if is_array(leaf) and (regular := runs(sharding, shape)) is not None:
        parts = views(leaf, regular.dim, regular.slices)
        return tuple([None if at is None else parts[at] for at in regular.of_rank])
    split = holdings(sharding, shape)
    return split.grid.by_rank(
        {
            cell: _part(leaf, shape, split.of_cell(cell), sharding.pad_value)
            for cell in split.grid.owners
        }
    )


def join(parts: Sequence[Any], sharding: Sharding, shape: Shape) -> Any:
    """The value with these parts by rank; of replicas, the part of the lowest rank is used.

    ``shape`` gives the sizes of the dims that are split, and may end after the last of them; the sizes of
    other dims are taken from the parts. Arrays of several dtypes are joined in their
    ``common_dtype``. Padding is removed; elements dropped by ``drop_last`` are missing.
    """
    sample = first(parts, sharding)
    if isinstance(sample, Jagged):
        return join_jagged(parts, sharding, shape)
    if sharding.is_whole:
        return sample if sample is not None else _of_replica(parts, sharding)
    if sample is None:
        raise InvalidRequestError(
            "the lowest rank that holds anything gave nothing; expected is its part"
        )
    part_shape = _sizes(shape_of(sample))
    split = holdings(sharding, _whole_shape(part_shape, sharding, shape))
    for cell, ranks in split.grid.owners.items():
        expected = tuple(piece.size for piece in split.of_cell(cell))
        _check_part(parts[ranks[0]], ranks[0], rows_kind(sample), expected)
    if _all_of(split.of_cell(next(iter(split.grid.owners))), split.shape):
        return sample
    split = without_dropped(split)
    owned = [parts[ranks[0]] for ranks in split.grid.owners.values()]
    result = blank(owned, split.shape) if is_array(sample) else [None] * split.shape[0]
    for cell, ranks in split.grid.owners.items():
        _put(result, split.of_cell(cell), parts[ranks[0]])
    return tuple(result) if isinstance(sample, tuple) else result


def _sizes(shape: Shape) -> tuple[int, ...]:
    return tuple(size for size in shape if isinstance(size, int))


def _all_of(dim_pieces: tuple[Piece, ...], shape: tuple[int, ...]) -> bool:
    return all(piece.run == slice(0, n) for piece, n in zip(dim_pieces, shape, strict=True))


def _part(leaf: Any, shape: tuple[int, ...], dim_pieces: tuple[Piece, ...], fill: Scalar) -> Any:
    if _all_of(dim_pieces, shape):
        return leaf
    if is_array(leaf):
        return take(leaf, dim_pieces, fill)
    run = dim_pieces[0].run
    if run is not None:
        return leaf[run]
    rows = [fill if row is None else leaf[row] for row in dim_pieces[0].indices()]
    return tuple(rows) if isinstance(leaf, tuple) else rows


def _put(target: Any, dim_pieces: tuple[Piece, ...], part: Any) -> None:
    if is_array(target):
        put(target, dim_pieces, part)
        return
    for run in dim_pieces[0].segments:
        target[run.start : run.stop] = part[run.local : run.local + run.stop - run.start]


def _whole_shape(part_shape: tuple[int, ...], sharding: Sharding, shape: Shape) -> tuple[int, ...]:
    sizes = list(part_shape)
    for dim in range(len(part_shape)):
        if not sharding.cuts(dim, len(part_shape)):
            continue
        size = shape[dim] if dim < len(shape) else None
        if not isinstance(size, int):
            raise InvalidRequestError(
                f"shape {shape} gives no size for dim {dim}, which the sharding splits; it is needed to join"
            )
        sizes[dim] = size
    return tuple(sizes)


def _of_replica(parts: Sequence[Any], sharding: Sharding) -> Any:
    """What the lowest rank that gave anything has given of a leaf that no axis splits."""
    replicas = (parts[rank] for ranks in grid(sharding, 0).owners.values() for rank in ranks)
    return next((part for part in replicas if part is not None), None)


def _check_part(part: Any, rank: int, kind: str, expected: tuple[int, ...]) -> None:
    actual = shape_of(part)
    if part is not None and rows_kind(part) != kind:
        raise InvalidRequestError(
            f"rank {rank} gave {rows_kind(part)}, the lowest rank {kind}; allowed are rows of one kind: "
            f"NumPy arrays, torch tensors, lists or Jagged batches"
        )
    if part is None or actual[: len(expected)] != expected:
        raise InvalidRequestError(
            f"rank {rank} gave {'nothing' if part is None else f'shape {actual}'}; expected is {expected}"
        )
