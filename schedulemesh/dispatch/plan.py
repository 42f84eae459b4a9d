"""Plans which rank sends which slice of a tensor to which other when it moves between layouts.

What a rank holds is a box of runs, dim by dim; a transfer is the intersection of two such boxes. As boxes are
products, a plan stores the intersections per dim (a few per rank) and multiplies them out only for the rank
that needs them: an all-to-all move among 1,024 ranks has a million transfers, its plan some thousands of
numbers.

Each destination fetches each of its elements once, and none that its worker already holds; no process
assembles the whole tensor. If several source ranks hold the same cell, the destinations that need elements of
it are ordered (by their own cell, then rank) and divided into consecutive shares of equal bytes, one per
owner: no owner sends more than an equal share plus what one destination needs of the cell, and replicas that
need the same box usually have the same sender, which stores it once.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import product
from math import prod

import msgspec

from schedulemesh.dispatch.holdings import Cell, holdings
from schedulemesh.dispatch.layout import whole_number
from schedulemesh.dispatch.placement import Sharding, whole_numbers
from schedulemesh.dispatch.routes import OwnerShare, Receiver, Routes, Worker
from schedulemesh.errors import InvalidRequestError

#: The types of workers that are equal in a cache only if they are the same.
_PLAIN = {int, str}
#: Start and stop per dim.
Box = tuple[tuple[int, int], ...]


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One box that a source rank sends to a destination rank."""

    source: int
    destination: int
    #: Its position in the source rank's array.
    give: Box
    #: Its position in the destination rank's array.
    take: Box
    #: Whether both ranks are on one worker: a local copy, which transfers nothing.
    local: bool

    @property
    def elements(self) -> int:
        """The number of elements sent."""
        return prod(stop - start for start, stop in self.give)


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Boxes of one cell that a source rank sends to destination ranks which all need the same of it."""

    source: int
    #: Ascending. If ``local``, the one rank on the source's worker.
    destinations: tuple[int, ...]
    #: Positions in the source rank's array, and of the same boxes in each destination rank's array.
    give: tuple[Box, ...]
    take: tuple[Box, ...]
    local: bool


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that one worker sends, receives and copies for a plan."""

    #: Sent to other workers.
    sent: int = 0
    #: Received from other workers.
    received: int = 0
    #: Already held, and copied within the worker.
    local: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Which rank sends which slice to which other. ``plan`` creates it; msgspec encodes and decodes it."""

    source: Sharding
    destination: Sharding
    shape: tuple[int, ...]
    #: Bytes per element.
    itemsize: int
    #: The worker of each source rank.
    source_workers: tuple[Worker, ...]
    #: The worker of each destination rank.
    destination_workers: tuple[Worker, ...]
    #: Which of several replicas gets the first share.
    rotation: int = 0
    #: The senders of cells with several owners; within a cell in the order of the destinations.
    shares: tuple[OwnerShare, ...] = ()
    #: By source rank, bytes sent to other workers.
    sent: tuple[int, ...] = ()
    #: By destination rank, bytes received from other workers.
    received: tuple[int, ...] = ()
    #: By destination rank, bytes that its worker already holds.
    local: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """64 hex digits that are the same for the same arguments of ``plan``, in every process."""
        arguments = (
            self.source,
            self.destination,
            self.shape,
            self.itemsize,
            self.source_workers,
            self.destination_workers,
            self.rotation,
        )
        return hashlib.sha256(msgspec.msgpack.encode(arguments)).hexdigest()

    @property
    def bytes_moved(self) -> int:
        """Total bytes sent from one worker to another."""
        return sum(self.received)

    def traffic(self) -> dict[Worker, Traffic]:
        """The traffic of each worker."""
        by_worker = {worker: Traffic() for worker in self.destination_workers}
        for worker, sent in zip(self.source_workers, self.sent, strict=True):
            by_worker[worker] = Traffic(sent=sent)
        destinations = zip(self.destination_workers, self.received, self.local, strict=True)
        for worker, received, local in destinations:
            by_worker[worker] = Traffic(sent=by_worker[worker].sent, received=received, local=local)
        return by_worker

    def fetches(self, destination: int) -> tuple[Transfer, ...]:
        """What ``destination`` fetches, by source rank: together its whole array, without padding."""
        cell = self.routes.destination.grid.cell_of(destination)
        if cell is None:
            return ()
        receiver = (cell, destination)
        transfers = [
            t for giver in self.routes.source_cells(cell) for t in self._boxes(giver, receiver)
        ]
        return tuple(sorted(transfers, key=lambda transfer: transfer.source))

    def sends(self, source: int) -> tuple[Transfer, ...]:
        """What ``source`` sends; replicas that need the same box are adjacent."""
        cell = self.routes.source.grid.cell_of(source)
        if cell is None:
            return ()
        return tuple(
            transfer
            for receiver, _ in self.routes.receivers(cell)
            if self._sender(cell, receiver) == source
            for transfer in self._boxes(cell, receiver)
        )

    def exchanges(self) -> Iterator[Exchange]:
        """Every transfer, those of the same boxes to several destinations as one."""
        for cell, owners in self.routes.destination.grid.owners.items():
            for giver in self.routes.source_cells(cell):
                give, take = self._runs(giver, cell)
                if not give:
                    continue
                for sender, local, ranks in self._senders(giver, cell, owners):
                    yield Exchange(
                        source=sender, destinations=ranks, give=give, take=take, local=local
                    )

    def transfers(self) -> Iterator[Transfer]:
        """Every transfer, by destination rank; between fully sharded layouts there are very many."""
        for destination in range(self.destination.layout.size):
            yield from self.fetches(destination)

    @cached_property
    def routes(self) -> Routes:
        """Which cells intersect; computed from the shardings, not encoded."""
        return Routes.of(
            holdings(self.source, self.shape),
            holdings(self.destination, self.shape),
            self.source_workers,
            self.destination_workers,
        )

    @cached_property
    def _firsts(self) -> dict[Cell, tuple[list[Receiver], list[int]]]:
        by_cell: dict[Cell, tuple[list[Receiver], list[int]]] = {}
        for share in self.shares:
            firsts, senders = by_cell.setdefault(share.cell, ([], []))
            firsts.append(share.first)
            senders.append(share.sender)
        return by_cell

    def _sender(self, giver: Cell, receiver: Receiver) -> int:
        if self.routes.local_cell(receiver[1]) == giver:
            return self.routes.local_sources[receiver[1]]
        owners = self.routes.source.grid.owners[giver]
        if len(owners) == 1:
            return owners[0]
        firsts, senders = self._firsts[giver]
        return senders[bisect_right(firsts, receiver) - 1]

    def _senders(
        self, giver: Cell, cell: Cell, owners: Sequence[int]
    ) -> Iterator[tuple[int, bool, tuple[int, ...]]]:
        """Who sends a cell's boxes to the owners of a destination cell: sender, whether local, receivers."""
        remote: dict[int, list[int]] = {}
        for rank in owners:
            sender = self._sender(giver, (cell, rank))
            if self.routes.local_sources.get(rank) == sender:
                yield sender, True, (rank,)
            else:
                remote.setdefault(sender, []).append(rank)
        for sender, ranks in remote.items():
            yield sender, False, tuple(ranks)

    def _boxes(self, giver: Cell, receiver: Receiver) -> Iterator[Transfer]:
        cell, destination = receiver
        sender = self._sender(giver, receiver)
        local = self.routes.local_sources.get(destination) == sender
        for give, take in zip(*self._runs(giver, cell), strict=True):
            yield Transfer(
                source=sender, destination=destination, give=give, take=take, local=local
            )

    def _runs(self, giver: Cell, cell: Cell) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
        """The boxes that a source cell and a destination cell have in common, as each holds them."""
        met = zip(self.routes.dims, giver, cell, strict=True)
        common = tuple(product(*(dim.sources[there][here] for dim, here, there in met)))
        return (
            tuple(tuple((run.source, run.source + run.length) for run in runs) for runs in common),
            tuple(
                tuple((run.destination, run.destination + run.length) for run in runs)
                for runs in common
            ),
        )


def plan(
    source: Sharding,
    destination: Sharding,
    shape: Sequence[int],
    *,
    itemsize: int = 1,
    source_workers: Iterable[Worker] | None = None,
    destination_workers: Iterable[Worker] | None = None,
    rotation: int = 0,
) -> Plan:
    """The plan to move a tensor of ``shape``, ``itemsize`` bytes per element, from one sharding to another.

    The workers are given by rank; ranks of both sides on one worker transfer nothing. By default the source's
    workers are 0 to n - 1 and the destination's are different ones: ``destination_workers=range(n)`` moves
    within one group. ``rotation`` selects the replica with the first share: increasing it from tensor to
    tensor spreads the load of tensors with few destinations. The last 256 plans are cached.

    Numbers may be those of NumPy. Raises ``InvalidRequestError`` if a sharding does not fit the shape, the
    workers do not fit the layouts, or the source lacks elements that the destination needs.
    """
    sources, destinations = source.layout.size, destination.layout.size
    made = _plan(
        source,
        destination,
        whole_numbers(shape, "shape"),
        _bytes(itemsize),
        _workers(source_workers, range(sources)),
        _workers(destination_workers, range(sources, sources + destinations)),
        (repr(source.pad_value), repr(destination.pad_value)),
    )
    turns = whole_number("rotation", rotation)
    return _rotated(made, turns) if turns else made


def _bytes(itemsize: object) -> int:
    size = whole_number("itemsize", itemsize)
    if size < 0:
        raise InvalidRequestError(f"itemsize={size}; allowed are 0 bytes and more")
    return size


@lru_cache(maxsize=256)
def _plan(
    source: Sharding,
    destination: Sharding,
    shape: tuple[int, ...],
    itemsize: int,
    source_workers: tuple[Worker, ...],
    destination_workers: tuple[Worker, ...],
    _pad_values: tuple[str, str],
) -> Plan:
    """The plan without rotation. Pad values such as 0, 0.0 and False are equal: their texts are not."""
    routes = Routes.of(
        holdings(source, shape), holdings(destination, shape), source_workers, destination_workers
    )
    shares, sent = routes.share()
    received, local = routes.received()
    made = Plan(
        source=source,
        destination=destination,
        shape=shape,
        itemsize=itemsize,
        source_workers=source_workers,
        destination_workers=destination_workers,
        shares=tuple(shares),
        sent=tuple(n * itemsize for n in sent),
        received=tuple(n * itemsize for n in received),
        local=tuple(n * itemsize for n in local),
    )
    made.__dict__["routes"] = routes
    return made


def _rotated(made: Plan, rotation: int) -> Plan:
    """The same plan, in which the owners of each cell have exchanged their shares in turn."""
    owners = made.routes.source.grid.owners
    following = {
        rank: ranks[(at + rotation) % len(ranks)]
        for ranks in owners.values()
        for at, rank in enumerate(ranks)
    }
    sent = [0] * len(made.sent)
    for rank, then in following.items():
        sent[then] = made.sent[rank]
    plan = msgspec.structs.replace(
        made,
        rotation=rotation,
        shares=tuple(
            msgspec.structs.replace(share, sender=following[share.sender]) for share in made.shares
        ),
        sent=tuple(sent),
    )
    plan.__dict__["routes"] = made.routes
    return plan


def _workers(workers: Iterable[Worker] | None, default: range) -> tuple[Worker, ...]:
    if workers is None:
        return _numbers(default)
    chosen = tuple(workers)
    if len(chosen) != len(default) or len(set(chosen)) != len(chosen):
        raise InvalidRequestError(
            f"{len(chosen)} workers were given, {len(set(chosen))} of them different; allowed are "
            f"{len(default)}, one per rank"
        )
    return chosen if set(map(type, chosen)) <= _PLAIN else tuple(map(_plain, chosen))


def _plain(worker: Worker) -> Worker:
    if isinstance(worker, str):
        return str(worker)
    return whole_number("worker", worker, "a name or a whole number")


@lru_cache(maxsize=256)
def _numbers(workers: range) -> tuple[int, ...]:
    return tuple(workers)
