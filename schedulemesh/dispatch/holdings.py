"""What every rank holds of a tensor: one piece per dim; replicas share a cell of the grid of pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar, Union

import msgspec

from schedulemesh.dispatch.pieces import Axis, Piece, compact, pieces
from schedulemesh.dispatch.placement import Placement, Primary, Sharding, Stage, whole_numbers
from schedulemesh.errors import InvalidRequestError

#: Sizes by dim; of a jagged batch ``(rows, (length of each row, …))``; of a value without dims ``()``.
Shape = tuple[Union[int, tuple[int, ...]], ...]
#: An index into the pieces of each dim: all ranks with the same cell hold the same elements.
Cell = tuple[int, ...]
_T = TypeVar("_T")


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Which cell of a tensor each rank holds; independent of the sizes of the tensor."""

    #: By rank; None: the rank holds nothing.
    cells: tuple[Cell | None, ...]
    #: The ranks of each cell, ascending; every cell has at least one.
    owners: dict[Cell, tuple[int, ...]]

    def cell_of(self, rank: int) -> Cell | None:
        """The cell of a rank; None: it holds nothing. An error says that there is no such rank."""
        if not 0 <= rank < len(self.cells):
            raise InvalidRequestError(
                f"rank {rank} is not in the layout; allowed are 0 to {len(self.cells) - 1}"
            )
        return self.cells[rank]

    def by_rank(self, of_cells: Mapping[Cell, _T]) -> tuple[_T | None, ...]:
        """The value of each rank's cell, by rank; None if a rank holds no cell."""
        return tuple(None if cell is None else of_cells[cell] for cell in self.cells)


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank holds of a tensor of one shape."""

    shape: tuple[int, ...]
    grid: Grid
    #: For each dim the pieces that the cells index.
    pieces: tuple[tuple[Piece, ...], ...]

    def of_cell(self, cell: Cell) -> tuple[Piece, ...]:
        """The pieces of a cell, by dim."""
        return tuple(dim[at] for dim, at in zip(self.pieces, cell, strict=True))

    def of_rank(self, rank: int) -> tuple[Piece, ...] | None:
        """The pieces that ``rank`` holds, by dim; None if it holds nothing."""
        cell = self.grid.cell_of(rank)
        return None if cell is None else self.of_cell(cell)

    def indices(self, dim: int) -> tuple[int, ...]:
        """The elements of ``dim`` that at least one rank holds, ascending; ``drop_last`` drops the others."""
        elements = {at for piece in self.pieces[dim] for at in piece.indices() if at is not None}
        return tuple(sorted(elements))

    def local_shape(self, rank: int) -> tuple[int, ...] | None:
        """The shape of the rank's array, padding included; None if it holds nothing."""
        dim_pieces = self.of_rank(rank)
        return None if dim_pieces is None else tuple(piece.size for piece in dim_pieces)


def holdings(sharding: Sharding, shape: Sequence[int]) -> Holdings:
    """What every rank of the sharding's layout holds of a tensor of this shape.

    Raises ``InvalidRequestError`` if a dim does not exist or a size cannot be split as requested.
    """
    return _holdings(sharding, whole_numbers(shape, "shape"))


@lru_cache(maxsize=1024)
def _holdings(sharding: Sharding, shape: tuple[int, ...]) -> Holdings:
    ndim = len(shape)
    return Holdings(
        shape=shape,
        grid=grid(sharding, ndim),
        pieces=tuple(pieces(n, sharding.cuts(dim, ndim)) for dim, n in enumerate(shape)),
    )


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """A split of one dim into parts that are one run each, in order, without padding."""

    dim: int
    #: One per part.
    slices: tuple[slice, ...]
    #: The index of each rank's part, by rank; None: the rank holds nothing.
    of_rank: tuple[int | None, ...]


@lru_cache(maxsize=1024)
def runs(sharding: Sharding, shape: tuple[int, ...]) -> Runs | None:
    """The split of a tensor that is split along one dim at most, into whole runs; None for all others."""
    parts = holdings(sharding, shape)
    split = [dim for dim, dim_runs in enumerate(parts.pieces) if len(dim_runs) > 1]
    if len(split) > 1 or not shape:
        return None
    dim = split[0] if split else 0
    dim_runs = [piece.run for piece in parts.pieces[dim] if piece.size == piece.length]
    others = (piece.run for at, each in enumerate(parts.pieces) if at != dim for piece in each)
    others_are_whole = all(
        run == slice(0, size)
        for run, size in zip(others, (n for at, n in enumerate(shape) if at != dim), strict=True)
    )
    slices = tuple(run for run in dim_runs if run is not None)
    if any(one.stop > other.start for one, other in pairwise(slices)):
        return None
    if not others_are_whole or len(slices) != len(parts.pieces[dim]):
        return None
    of_rank = tuple(None if cell is None else cell[dim] for cell in parts.grid.cells)
    return Runs(dim=dim, slices=slices, of_rank=of_rank)


def without_dropped(holdings: Holdings) -> Holdings:
    """The same, renumbered without the elements that no rank holds; only ``drop_last`` leaves any."""
    dims = [compact(dim) for dim in holdings.pieces]
    return Holdings(
        shape=tuple(size for size, _ in dims),
        grid=holdings.grid,
        pieces=tuple(dim for _, dim in dims),
    )


@lru_cache(maxsize=256)
def grid(sharding: Sharding, ndim: int) -> Grid:
    """Which cell of a tensor of ``ndim`` dims each rank holds."""
    if not ndim:
        sharding.cuts(0, ndim)  # raises for the first axis that would split a dim
    dims = [sharding.cuts(dim, ndim) for dim in range(ndim)]
    cells = tuple(
        _cell(sharding, dims, sharding.layout.coordinates(rank))
        for rank in range(sharding.layout.size)
    )
    owners: dict[Cell, list[int]] = {}
    for rank, cell in enumerate(cells):
        if cell is not None:
            owners.setdefault(cell, []).append(rank)
    return Grid(cells=cells, owners={cell: tuple(ranks) for cell, ranks in owners.items()})


def first(parts: Sequence[Any], sharding: Sharding) -> Any:
    """Of the parts by rank, the part of the lowest rank that holds anything."""
    only = tuple(
        (name, how) for name, how in sharding.placements if isinstance(how, (Stage, Primary))
    )
    cells = grid(Sharding(layout=sharding.layout, placements=only), 0).cells
    return next(part for part, cell in zip(parts, cells, strict=True) if cell is not None)


def _cell(sharding: Sharding, dims: list[tuple[Axis, ...]], at: dict[str, int]) -> Cell | None:
    for name, placement in sharding.placements:
        if not _holds(placement, at[name], sharding.layout.size_of(name)):
            return None
    numbers = []
    for cuts in dims:
        piece = 0
        for name, size, _ in cuts:
            piece = piece * size + at[name]
        numbers.append(piece)
    return tuple(numbers)


def _holds(placement: Placement, at: int, size: int) -> bool:
    if isinstance(placement, Stage):
        return at == placement.index % size
    return at == 0 or not isinstance(placement, Primary)
