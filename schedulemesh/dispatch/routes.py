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

#: Identifies a worker: an agent's name, or a number.
Worker = Union[int, str]
#: A destination that needs elements of a source cell: its own cell, then its rank. Ordered.
Want = tuple[Cell, int]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The destinations that one owner serves, of a cell that several ranks hold."""

    #: The source cell: the index of its piece of each dim.
    cell: Cell
    #: The first destination that it serves; the share ends where the next share of the cell begins.
    first: Want
    #: The source rank that sends.
    sender: int


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Which source cells and destination cells intersect, and which ranks are on one worker."""

    source: Holdings
    destination: Holdings
    #: By dim, the intersections of the pieces of both sides.
    dims: tuple[Overlap, ...]
    #: For each destination rank the source rank on the same worker, if there is one.
    homes: dict[int, int]
    #: For each source rank the destination rank on the same worker, if there is one.
    guests: dict[int, int]

    @classmethod
    def of(
        cls,
        source: Holdings,
        destination: Holdings,
        source_workers: Sequence[Worker],
        destination_workers: Sequence[Worker],
    ) -> Routes:
        """The routes between two holdings of one tensor; an error if the source lacks elements."""
        ranks = {worker: rank for rank, worker in enumerate(source_workers)}
        homes = {
            rank: ranks[worker]
            for rank, worker in enumerate(destination_workers)
            if worker in ranks
        }
        return cls(
            source=source,
            destination=destination,
            dims=tuple(map(overlap, source.pieces, destination.pieces)),
            homes=homes,
            guests={home: rank for rank, home in homes.items()},
        )

    def home_cell(self, destination: int) -> Cell | None:
        """The source cell that the worker of a destination rank already holds."""
        home = self.homes.get(destination)
        return None if home is None else self.source.grid.cells[home]

    def givers(self, cell: Cell) -> Iterator[Cell]:
        """The source cells that intersect a destination cell."""
        return product(*(dim.sources[at] for dim, at in zip(self.dims, cell, strict=True)))

    def wants(self, giver: Cell) -> list[tuple[Want, int]]:
        """The destinations that need elements of a source cell, in order, and how many."""
        owners = self.destination.grid.owners
        met = [dim.destinations[at] for dim, at in zip(self.dims, giver, strict=True)]
        cells = product(*([at for at, _ in dim] for dim in met))
        elements = map(prod, product(*([length for _, length in dim] for dim in met)))
        return [
            ((cell, rank), n)
            for cell, n in zip(cells, elements, strict=True)
            for rank in owners[cell]
        ]

    def shared(self, giver: Cell, cell: Cell) -> int:
        """The number of elements that a source cell and a destination cell have in common."""
        return prod(
            dim.length(here, there) for dim, here, there in zip(self.dims, giver, cell, strict=True)
        )

    def received(self) -> tuple[list[int], list[int]]:
        """By destination rank, how many elements it fetches and how many its worker already holds."""
        ranks = len(self.destination.grid.cells)
        received, local = [0] * ranks, [0] * ranks
        for cell, owners in self.destination.grid.owners.items():
            whole = prod(piece.length for piece in self.destination.of_cell(cell))
            for rank in owners:
                home = self.home_cell(rank)
                local[rank] = 0 if home is None else self.shared(home, cell)
                received[rank] = whole - local[rank]
        return received, local

    def share(self, rotation: int) -> tuple[list[Share], list[int]]:
        """The senders of cells with several owners, and by source rank the total number of elements sent."""
        shares: list[Share] = []
        sent = [0] * len(self.source.grid.cells)
        for cell, owners in self.source.grid.owners.items():
            if len(owners) == 1:
                sent[owners[0]] = self._asked(cell, owners[0])
                continue
            turn = rotation % len(owners)
            for share, elements in self._cut(cell, owners[turn:] + owners[:turn]):
                shares.append(share)
                sent[share.sender] += elements
        return shares, sent

    def _asked(self, giver: Cell, owner: int) -> int:
        """The number of elements that other workers need from the only owner of a cell."""
        met = (dim.destinations[at] for dim, at in zip(self.dims, giver, strict=True))
        copies = len(next(iter(self.destination.grid.owners.values())))
        asked = copies * prod(sum(length for _, length in dim) for dim in met)
        guest = self.guests.get(owner)
        cell = None if guest is None else self.destination.grid.cells[guest]
        return asked - (0 if cell is None else self.shared(giver, cell))

    def _cut(self, giver: Cell, owners: Sequence[int]) -> Iterator[tuple[Share, int]]:
        """Divides the destinations of a cell into consecutive shares of equal size, at most one per owner.

        Each comes with its size. A destination belongs to the share that contains its middle element.
        """
        guests = {self.guests.get(owner) for owner in owners}
        wants = [(want, n) for want, n in self.wants(giver) if want[1] not in guests]
        ends = list(accumulate([n for _, n in wants], initial=0))
        middles = list(map(add, ends, ends[1:]))
        borders = [
            bisect_left(middles, -(-2 * ends[-1] * turn // len(owners)))
            for turn in range(len(owners) + 1)
        ]
        for owner, (first, last) in zip(owners, pairwise(borders), strict=True):
            if first < last:
                yield Share(cell=giver, first=wants[first][0], sender=owner), ends[last] - ends[
                    first
                ]
