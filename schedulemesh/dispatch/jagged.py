"""Rows of different lengths in one array, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from schedulemesh.dispatch.arrays import (
    blank,
    check_inner_dims,
    check_unmasked,
    joined_rows,
    put,
    take,
)
from schedulemesh.dispatch.holdings import Cell, Grid, Shape, grid
from schedulemesh.dispatch.pieces import Axis, Piece, compact, joined, pieces
from schedulemesh.dispatch.placement import Sharding, whole_numbers
from schedulemesh.errors import InvalidRequestError


class Jagged(msgspec.Struct, frozen=True, eq=False):
    """A batch whose rows have different lengths, packed one after another (``cu_seqlens`` of attention).

    Its dim 0 is the rows, its dim 1 the elements within a row: ``Shard(0)`` distributes rows, ``Shard(1)``
    splits every row separately.
    """

    #: The rows concatenated along dim 0: a NumPy array or a torch tensor.
    values: Any
    #: The length of each row; the sum is the length of ``values``.
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        check_unmasked(self.values)
        force_setattr(self, "lengths", whole_numbers(self.lengths, "lengths"))
        if sum(self.lengths) != len(self.values) or any(length < 0 for length in self.lengths):
            raise InvalidRequestError(
                f"lengths {self.lengths} do not make the {len(self.values)} values; allowed are whole "
                f"numbers from 0 with that sum"
            )

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Jagged:
        """The batch of these arrays, at least one, which may differ in their first dim only. Copies them."""
        if not rows:
            raise InvalidRequestError(
                "no rows were given; allowed is one row or more, for their dtype"
            )
        return cls(joined_rows(rows), tuple(len(row) for row in rows))

    @property
    def offsets(self) -> tuple[int, ...]:
        """The start of each row, and finally the end of the last: ``cu_seqlens``."""
        return tuple(accumulate(self.lengths, initial=0))

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[Any]:
        """The rows, as views."""
        offsets = self.offsets
        return (self.values[a:b] for a, b in pairwise(offsets))


def cut_jagged(leaf: Jagged, sharding: Sharding) -> tuple[Jagged | None, ...]:
    """The part of each rank, None if it holds nothing; replicas share one object."""
    where = grid(sharding, 2)
    rows = pieces(len(leaf), sharding.cuts(0, 2))
    parts: dict[Cell, Jagged] = {}
    for row_piece, at in where.owners:
        piece, lengths = _packed(leaf.lengths, rows[row_piece], sharding.cuts(1, 2), at)
        parts[row_piece, at] = Jagged(take(leaf.values, (piece,), sharding.pad_value), lengths)
    return where.by_rank(parts)


def join_jagged(parts: Sequence[Any], sharding: Sharding, shape: Shape) -> Jagged:
    """The batch with these parts by rank; ``shape`` needs the rows' lengths only if rows are split."""
    where = grid(sharding, 2)
    cuts = sharding.cuts(1, 2)
    rows = pieces(_rows(shape), sharding.cuts(0, 2))
    lengths = _lengths(parts, sharding, shape, where, rows)
    packed = []
    for (row_piece, at), ranks in where.owners.items():
        piece, expected = _packed(lengths, rows[row_piece], cuts, at)
        actual = _row_lengths(parts, ranks[0])
        if actual != expected:
            raise InvalidRequestError(
                f"rank {ranks[0]} gave rows of {actual}; expected are rows of {expected}"
            )
        packed.append(piece)
    size, compacted = compact(packed)
    values_by_cell = [parts[ranks[0]].values for ranks in where.owners.values()]
    check_inner_dims(values_by_cell)
    values = blank(values_by_cell, (size, *values_by_cell[0].shape[1:]))
    for part, piece in zip(values_by_cell, compacted, strict=True):
        put(values, (piece,), part)
    there = sorted({row for piece in rows for row in piece.indices() if row is not None})
    return Jagged(values, tuple(sum(p.length for p in pieces(lengths[row], cuts)) for row in there))


def _rows(shape: Shape) -> int:
    if not shape or not isinstance(shape[0], int):
        raise InvalidRequestError(f"shape {shape} gives no number of rows; it is needed to join")
    return shape[0]


def _row_lengths(parts: Sequence[Any], rank: int) -> tuple[int, ...]:
    part = parts[rank]
    if not isinstance(part, Jagged):
        raise InvalidRequestError(f"rank {rank} gave a {type(part).__name__}; expected is a Jagged")
    return part.lengths


def _lengths(
    parts: Sequence[Any], sharding: Sharding, shape: Shape, where: Grid, rows: tuple[Piece, ...]
) -> tuple[int, ...]:
    """The length of every row of the whole: known from the parts, unless rows are split."""
    if sharding.cuts(1, 2):
        row_lengths = shape[1] if len(shape) > 1 else None
        if not isinstance(row_lengths, tuple) or len(row_lengths) != shape[0]:
            raise InvalidRequestError(
                f"shape {shape} gives no length for each row, which the sharding splits; allowed is "
                f"(rows, (length, …))"
            )
        return row_lengths
    lengths = [0] * _rows(shape)
    for (row_piece, _), ranks in where.owners.items():
        for row, length in zip(
            rows[row_piece].indices(), _row_lengths(parts, ranks[0]), strict=False
        ):
            if row is not None:
                lengths[row] = length
    return tuple(lengths)


def _packed(
    lengths: Sequence[int], rows: Piece, cuts: tuple[Axis, ...], at: int
) -> tuple[Piece, tuple[int, ...]]:
    """What one cell holds of the values of a jagged batch, and the lengths of its rows.

    ``rows`` are its rows of the batch, ``at`` the index of its piece of each row, as split by ``cuts``.
    Rows of padding have length 0.
    """
    offsets = tuple(accumulate(lengths, initial=0))
    runs: list[tuple[int, int, int]] = []
    row_sizes, local = [], 0
    for row in rows.indices():
        if row is None:
            row_sizes.append(0)
            continue
        begin, piece = offsets[row], pieces(lengths[row], cuts)[at]
        runs += [(begin + r.start, begin + r.stop, local + r.local) for r in piece.segments]
        row_sizes.append(piece.size)
        local += piece.size
    return Piece(local, joined(runs)), tuple(row_sizes)
