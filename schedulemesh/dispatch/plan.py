"""Who sends which slice of a tensor to whom when it moves from one layout to another.

What two ranks hold are boxes of runs, dim by dim; what one has to give the other is their intersection. As
boxes are products, a plan keeps the intersections of each dim (a few per rank) and multiplies them out only
for the rank that asks: a move of every rank to every rank has a million transfers among 1,024, its plan has
some thousands of numbers.

Each destination fetches its own elements, each once, and none that its worker holds already; nobody
assembles the whole. Where several source ranks hold the same cell, those who want something of it are put in
order (by their own cell, then rank) and cut into as many consecutive shares of equal bytes: no owner sends
more than its even share and one box, and replicas that want the same box tend to share one sender, who puts
it once.
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
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.dispatch.routes import Routes, Share, Want, Worker
from schedulemesh.errors import InvalidRequestError

#: Start and stop per dim.
Box = tuple[tuple[int, int], ...]


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One box that goes from a source rank to a destination rank."""

    source: int
    destination: int
    #: Where it lies in the source rank's array.
    give: Box
    #: Where it goes in the destination rank's array.
    take: Box
    #: Whether both ranks live on one worker: a copy there, which moves nothing.
    local: bool

    @property
    def elements(self) -> int:
        """How many elements go."""
        return prod(stop - start for start, stop in self.give)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan costs one worker, in bytes."""

    #: Sent to other workers.
    sent: int = 0
    #: Received from other workers.
    received: int = 0
    #: Held already, and copied within the worker.
    local: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Who sends which slice to whom. ``plan`` makes it; msgspec encodes and decodes it."""

    source: Sharding
    destination: Sharding
    shape: tuple[int, ...]
    #: Bytes per element.
    itemsize: int
    #: The worker of each source rank.
    source_workers: tuple[Worker, ...]
    #: The worker of each destination rank.
    destination_workers: tuple[Worker, ...]
    #: Which of several replicas begins.
    rotation: int = 0
    #: Who sends what several hold; in order of the wants within a cell.
    shares: tuple[Share, ...] = ()
    #: By source rank, bytes that go to other workers.
    sent: tuple[int, ...] = ()
    #: By destination rank, bytes that come from other workers.
    received: tuple[int, ...] = ()
    #: By destination rank, bytes that its worker holds already.
    local: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """64 hex digits that are the same for the same arguments of ``plan``, in every process."""
        asked = (
            self.source,
            self.destination,
            self.shape,
            self.itemsize,
            self.source_workers,
            self.destination_workers,
            self.rotation,
        )
        return hashlib.sha256(msgspec.msgpack.encode(asked)).hexdigest()

    @property
    def bytes_moved(self) -> int:
        """Bytes that go from one worker to another, in all."""
        return sum(self.received)

    def traffic(self) -> dict[Worker, Traffic]:
        """What the plan costs each worker."""
        found = {worker: Traffic() for worker in self.destination_workers}
        for worker, sent in zip(self.source_workers, self.sent, strict=True):
            found[worker] = Traffic(sent=sent)
        takers = zip(self.destination_workers, self.received, self.local, strict=True)
        for worker, received, local in takers:
            found[worker] = Traffic(sent=found[worker].sent, received=received, local=local)
        return found

    def fetches(self, destination: int) -> tuple[Transfer, ...]:
        """What ``destination`` fetches, by source rank: together its whole array, less the padding."""
        cell = self.routes.destination.grid.cells[destination]
        if cell is None:
            return ()
        want = (cell, destination)
        found = [t for giver in self.routes.givers(cell) for t in self._boxes(giver, want)]
        return tuple(sorted(found, key=lambda transfer: transfer.source))

    def sends(self, source: int) -> tuple[Transfer, ...]:
        """What ``source`` gives; replicas that want the same box follow one another."""
        cell = self.routes.source.grid.cells[source]
        if cell is None:
            return ()
        return tuple(
            transfer
            for want, _ in self.routes.wants(cell)
            if self._sender(cell, want) == source
            for transfer in self._boxes(cell, want)
        )

    def transfers(self) -> Iterator[Transfer]:
        """Every transfer, by destination rank; between fully cut layouts there are very many."""
        for destination in range(self.destination.layout.size):
            yield from self.fetches(destination)

    @cached_property
    def routes(self) -> Routes:
        """Which cells meet; worked out from the shardings, not encoded."""
        return Routes.of(
            holdings(self.source, self.shape),
            holdings(self.destination, self.shape),
            self.source_workers,
            self.destination_workers,
        )

    @cached_property
    def _firsts(self) -> dict[Cell, tuple[list[Want], list[int]]]:
        found: dict[Cell, tuple[list[Want], list[int]]] = {}
        for share in self.shares:
            firsts, senders = found.setdefault(share.cell, ([], []))
            firsts.append(share.first)
            senders.append(share.sender)
        return found

    def _sender(self, giver: Cell, want: Want) -> int:
        if self.routes.home_cell(want[1]) == giver:
            return self.routes.homes[want[1]]
        owners = self.routes.source.grid.owners[giver]
        if len(owners) == 1:
            return owners[0]
        firsts, senders = self._firsts[giver]
        return senders[bisect_right(firsts, want) - 1]

    def _boxes(self, giver: Cell, want: Want) -> Iterator[Transfer]:
        cell, destination = want
        sender = self._sender(giver, want)
        met = zip(self.routes.dims, giver, cell, strict=True)
        for runs in product(*(dim.sources[there][here] for dim, here, there in met)):
            yield Transfer(
                source=sender,
                destination=destination,
                give=tuple((run.source, run.source + run.length) for run in runs),
                take=tuple((run.destination, run.destination + run.length) for run in runs),
                local=self.routes.homes.get(destination) == sender,
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

    Workers are named by rank; ranks of both sides on one worker exchange nothing. Without names, the source's
    workers are 0 to n - 1 and the destination's are others: ``destination_workers=range(n)`` moves within one
    group. ``rotation`` chooses the replica that begins: counting it up from tensor to tensor spreads the load
    of tensors that only few want. The last 256 plans are kept.

    Raises ``InvalidRequestError`` where a sharding does not fit the shape or the workers the layouts,
    or where the source lacks elements that the destination wants.
    """
    givers, takers = source.layout.size, destination.layout.size
    return _plan(
        source,
        destination,
        tuple(shape),
        itemsize,
        _workers(source_workers, range(givers)),
        _workers(destination_workers, range(givers, givers + takers)),
        rotation,
    )


@lru_cache(maxsize=256)
def _plan(
    source: Sharding,
    destination: Sharding,
    shape: tuple[int, ...],
    itemsize: int,
    source_workers: tuple[Worker, ...],
    destination_workers: tuple[Worker, ...],
    rotation: int,
) -> Plan:
    routes = Routes.of(
        holdings(source, shape), holdings(destination, shape), source_workers, destination_workers
    )
    shares, sent = routes.share(rotation)
    received, local = routes.received()
    return Plan(
        source=source,
        destination=destination,
        shape=shape,
        itemsize=itemsize,
        source_workers=source_workers,
        destination_workers=destination_workers,
        rotation=rotation,
        shares=tuple(shares),
        sent=tuple(n * itemsize for n in sent),
        received=tuple(n * itemsize for n in received),
        local=tuple(n * itemsize for n in local),
    )


def _workers(given: Iterable[Worker] | None, default: range) -> tuple[Worker, ...]:
    found = tuple(default if given is None else given)
    if len(found) != len(default) or len(set(found)) != len(found):
        raise InvalidRequestError(
            f"{len(found)} workers were given, {len(set(found))} of them different; allowed are "
            f"{len(default)}, one per rank"
        )
    return found
