"""Which source cells and destination cells intersect, and which owner of a cell sends it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, product
from math import prod
from operator import add
from typing import Union

import msgspec

from schedulemesh.dispatch.holdings import Cell, Holdings
from schedulemesh.dispatch.overlap import Overlap, overlap
from schedulemesh.errors import InvalidRequestError

#: Identifies a worker: an agent's name, or a number.
Worker = Union[int, str]
#: A destination that needs elements of a source cell: its own cell, then its rank. Ordered.
Receiver = tuple[Cell, int]


class OwnerShare(msgspec.Struct, frozen=True, kw_only=True):
    """The destinations that one owner serves, of a cell that several ranks hold."""

    #: The source cell: the index of its piece of each dim.
    cell: Cell
    #: The first destination that it serves; the share ends where the next share of the cell begins.
    first: Receiver
    #: The source rank that sends.
    sender: int


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Which source cells and destination cells intersect, and which ranks are on one worker."""

    source: Holdings
    destination: Holdings
    #: By dim, the intersections of the pieces of both sides.
    dims: tuple[Overlap, ...]
    #: For each destination rank the source rank on the same worker, if there is one.
    local_sources: dict[int, int]
    #: For each source rank the destination rank on the same worker, if there is one.
    local_destinations: dict[int, int]

    @classmethod
    def of(
        cls,
        source: Holdings,
        destination: Holdings,
        source_workers: Sequence[Worker],
        destination_workers: Sequence[Worker],
    ) -> Routes:
        """The routes between two holdings of one tensor; an error if a rank needs what no source holds."""
        ranks = {worker: rank for rank, worker in enumerate(source_workers)}
        local_sources = {
            rank: ranks[worker]
            for rank, worker in enumerate(destination_workers)
            if worker in ranks
        }
        dims = tuple(map(overlap, source.pieces, destination.pieces))
        _check_nothing_lacks(destination, dims)
        return cls(
            source=source,
            destination=destination,
            dims=dims,
            local_sources=local_sources,
            local_destinations={local_source: rank for rank, local_source in local_sources.items()},
        )

    def local_cell(self, destination: int) -> Cell | None:
        """The source cell that the worker of a destination rank already holds."""
        local_source = self.local_sources.get(destination)
        return None if local_source is None else self.source.grid.cells[local_source]

    def source_cells(self, cell: Cell) -> Iterator[Cell]:
        """The source cells that intersect a destination cell."""
        return product(*(dim.sources[at] for dim, at in zip(self.dims, cell, strict=True)))

    def receivers(self, source_cell: Cell) -> list[tuple[Receiver, int]]:
        """The destinations that need elements of a source cell, in order, and how many."""
        owners = self.destination.grid.owners
        met = self._met(source_cell)
        cells = product(*([at for at, _ in dim] for dim in met))
        elements = map(prod, product(*([length for _, length in dim] for dim in met)))
        return [
            ((cell, rank), n)
            for cell, n in zip(cells, elements, strict=True)
            for rank in owners[cell]
        ]

    def shared(self, source_cell: Cell, cell: Cell) -> int:
        """The number of elements that a source cell and a destination cell have in common."""
        return prod(
            dim.length(here, there)
            for dim, here, there in zip(self.dims, source_cell, cell, strict=True)
        )

    def received(self) -> tuple[list[int], list[int]]:
        """By destination rank, how many elements it fetches and how many its worker already holds."""
        ranks = len(self.destination.grid.cells)
        received, local = [0] * ranks, [0] * ranks
        for cell, owners in self.destination.grid.owners.items():
            total = prod(piece.length for piece in self.destination.of_cell(cell))
            for rank in owners:
                local_source = self.local_cell(rank)
                local[rank] = 0 if local_source is None else self.shared(local_source, cell)
                received[rank] = total - local[rank]
        return received, local

    def share(self) -> tuple[list[OwnerShare], list[int]]:
        """The senders of cells with several owners, and by source rank the total number of elements sent."""
        shares: list[OwnerShare] = []
        sent = [0] * len(self.source.grid.cells)
        divided: dict[object, list[tuple[int, Receiver, int]]] = {}
        for cell, owners in self.source.grid.owners.items():
            if len(owners) == 1:
                sent[owners[0]] = self._requested(cell, owners[0])
                continue
            # Cells whose elements are needed alike are divided alike: between regular layouts almost all.
            local = tuple(self.local_destinations.get(owner) for owner in owners)
            alike = (self._met(cell), local)
            if alike not in divided:
                divided[alike] = self._divide(cell, local)
            for at, receiver, elements in divided[alike]:
                shares.append(OwnerShare(cell=cell, first=receiver, sender=owners[at]))
                sent[owners[at]] += elements
        return shares, sent

    def _met(self, source_cell: Cell) -> tuple[tuple[tuple[int, int], ...], ...]:
        """By dim the destination pieces that need elements of a source cell, and how many."""
        return tuple(dim.destinations[at] for dim, at in zip(self.dims, source_cell, strict=True))

    def _requested(self, source_cell: Cell, owner: int) -> int:
        """The number of elements that other workers need from the only owner of a cell."""
        met = self._met(source_cell)
        copies = len(next(iter(self.destination.grid.owners.values())))
        requested = copies * prod(sum(length for _, length in dim) for dim in met)
        local_destination = self.local_destinations.get(owner)
        cell = None if local_destination is None else self.destination.grid.cells[local_destination]
        return requested - (0 if cell is None else self.shared(source_cell, cell))

    def _divide(
        self, source_cell: Cell, local_destinations: Sequence[int | None]
    ) -> list[tuple[int, Receiver, int]]:
        """Divides the destinations of a cell into consecutive shares of about equal size, one per owner.

        Each is the index of the owner, the first destination, and the number of elements; an owner whose
        share is empty is left out. A destination belongs to the share that contains its middle element. No
        share has the destinations on the owners' own workers (``local_destinations``, by owner).
        """
        receivers = [
            (receiver, n)
            for receiver, n in self.receivers(source_cell)
            if receiver[1] not in local_destinations
        ]
        owners = len(local_destinations)
        ends = list(accumulate([n for _, n in receivers], initial=0))
        # Twice the middle of each destination and twice the begin of each share, to stay in whole numbers.
        doubled_middles = list(map(add, ends, ends[1:]))
        doubled_begins = [_ceil_div(2 * ends[-1] * share, owners) for share in range(owners + 1)]
        borders = [bisect_left(doubled_middles, begin) for begin in doubled_begins]
        return [
            (owner, receivers[first][0], ends[last] - ends[first])
            for owner, (first, last) in enumerate(pairwise(borders))
            if first < last
        ]


def _ceil_div(number: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-number // divisor)


def _check_nothing_lacks(destination: Holdings, dims: Sequence[Overlap]) -> None:
    """Raise if a rank needs elements that no source holds; a rank whose array is empty needs none."""
    if not any(dim.lacking for dim in dims):
        return
    for cell, owners in destination.grid.owners.items():
        needs = prod(piece.length for piece in destination.of_cell(cell))
        if needs and any(at in dim.lacking for at, dim in zip(cell, dims, strict=True)):
            raise InvalidRequestError(
                f"destination rank {owners[0]} needs elements that no source holds; allowed is a source that "
                f"holds all of the tensor, without uneven='drop_last'"
            )
