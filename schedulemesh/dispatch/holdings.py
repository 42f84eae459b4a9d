"""What every rank holds of a tensor: one piece per dim, shared by the replicas that hold the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, Union

import msgspec

from schedulemesh.dispatch.pieces import Axis, Piece, compact, pieces
from schedulemesh.dispatch.placement import Placement, Primary, Sharding, Stage

#: Sizes by dim; of a jagged batch ``(rows, (length of each row, …))``; of what has no dims ``()``.
Shape = tuple[Union[int, tuple[int, ...]], ...]
#: Which piece of each dim: all ranks with the same cell hold the same elements.
Cell = tuple[int, ...]
_T = TypeVar("_T")


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Which cell of a tensor each rank holds; the same for all sizes of the tensor."""

    #: By rank; None holds nothing.
    cells: tuple[Cell | None, ...]
    #: The ranks of each cell, ascending; no cell is without.
    owners: dict[Cell, tuple[int, ...]]

    def by_rank(self, of_cells: Mapping[Cell, _T]) -> tuple[_T | None, ...]:
        """What each rank has of what the cells have; None where it holds no cell."""
        return tuple(None if cell is None else of_cells[cell] for cell in self.cells)


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank holds of a tensor of one shape."""

    shape: tuple[int, ...]
    grid: Grid
    #: For each dim the pieces that its cells name.
    pieces: tuple[tuple[Piece, ...], ...]

    def of_cell(self, cell: Cell) -> tuple[Piece, ...]:
        """What a cell is, dim by dim."""
        return tuple(dim[at] for dim, at in zip(self.pieces, cell, strict=True))

    def of_rank(self, rank: int) -> tuple[Piece, ...] | None:
        """What ``rank`` holds, dim by dim; None where it holds nothing."""
        cell = self.grid.cells[rank]
        return None if cell is None else self.of_cell(cell)

    def indices(self, dim: int) -> tuple[int, ...]:
        """The elements of ``dim`` that any rank holds, ascending; ``drop_last`` leaves the others out."""
        held = {at for piece in self.pieces[dim] for at in piece.indices() if at is not None}
        return tuple(sorted(held))

    def local_shape(self, rank: int) -> tuple[int, ...] | None:
        """The shape of the rank's array, padding included; None where it holds nothing."""
        held = self.of_rank(rank)
        return None if held is None else tuple(piece.size for piece in held)


def holdings(sharding: Sharding, shape: Sequence[int]) -> Holdings:
    """What every rank of the sharding's layout holds of a tensor of this shape.

    Raises ``InvalidRequestError`` where a dim does not exist or a size cannot be cut as asked.
    """
    return _holdings(sharding, tuple(shape))


@lru_cache(maxsize=1024)
def _holdings(sharding: Sharding, shape: tuple[int, ...]) -> Holdings:
    ndim = len(shape)
    return Holdings(
        shape=shape,
        grid=grid(sharding, ndim),
        pieces=tuple(pieces(n, sharding.cuts(dim, ndim)) for dim, n in enumerate(shape)),
    )


def kept(held: Holdings) -> Holdings:
    """The same with the elements that nobody holds left out of the count; only ``drop_last`` has any."""
    dims = [compact(dim) for dim in held.pieces]
    return Holdings(
        shape=tuple(size for size, _ in dims), grid=held.grid, pieces=tuple(dim for _, dim in dims)
    )


@lru_cache(maxsize=256)
def grid(sharding: Sharding, ndim: int) -> Grid:
    """Which cell of a tensor of ``ndim`` dims each rank holds."""
    if not ndim:
        sharding.cuts(0, ndim)  # refuses the first axis that would cut something
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
    """Of the parts by rank, that of the lowest rank that holds anything, whatever the dims."""
    only = tuple(
        (name, how) for name, how in sharding.placements if isinstance(how, (Stage, Primary))
    )
    cells = grid(Sharding(layout=sharding.layout, placements=only), 0).cells
    return next(part for part, cell in zip(parts, cells, strict=True) if cell is not None)


def _cell(sharding: Sharding, dims: list[tuple[Axis, ...]], at: dict[str, int]) -> Cell | None:
    for name, placement in sharding.placements:
        if not _holds(placement, at[name], sharding.layout.size_of(name)):
            return None
    found = []
    for cuts in dims:
        piece = 0
        for name, size, _ in cuts:
            piece = piece * size + at[name]
        found.append(piece)
    return tuple(found)


def _holds(placement: Placement, at: int, size: int) -> bool:
    if isinstance(placement, Stage):
        return at == placement.index % size
    return at == 0 or not isinstance(placement, Primary)
