"""Divides a round of a move into objects for the object store: who gives what, and who copies what of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from schedulemesh.core.worker_groups.array_trees import Path, spelled
from schedulemesh.core.worker_groups.move_plan import Tensor
from schedulemesh.core.worker_groups.shards import (
    Bundle,
    Copy,
    Form,
    OwnCopy,
    Slices,
    TargetTensors,
    Write,
)
from schedulemesh.core.worker_groups.shared_memory import BlockOffsets
from schedulemesh.dispatch.plan import Box, Exchange, Plan
from schedulemesh.errors import InvalidRequestError

#: On the source's own node its whole part is given if at least this share of it is needed there: one
#: contiguous copy into the object store, from which every receiver copies what it needs, costs less than
#: cutting slices.
WHOLE_ON_OWN_NODE = 0.5


class Structure(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Tensors of one form that move alike."""

    paths: tuple[Path, ...]
    form: Form
    plan: Plan


class SourceObject(msgspec.Struct, kw_only=True, eq=False):
    """One object that a source rank puts into the object store."""

    source: int
    destinations: tuple[int, ...]
    slices: list[Slices]
    #: By destination rank, what it copies of each of ``slices``.
    copies: dict[int, list[tuple[Copy, ...]]]

    def bundle(self, destination: int) -> Bundle:
        """The object as one of its receivers sees it."""
        return Bundle(slices=tuple(self.slices), copies=tuple(self.copies[destination]))


class DirectCopy(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a source rank copies straight into new arrays of a rank on its node."""

    source: int
    destination: int
    #: The position of its tensors among the round's structures.
    structure_number: int
    give: tuple[Box, ...]
    take: tuple[Box, ...]


class Round(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one round of a move transfers."""

    objects: tuple[SourceObject, ...]
    direct_copies: tuple[DirectCopy, ...]
    #: By destination rank.
    local: Mapping[int, list[OwnCopy]]
    structures: tuple[Structure, ...]

    def writes(self, opened: Sequence[Sequence[BlockOffsets | None]]) -> dict[int, list[Write]]:
        """By source rank, what it writes where; ``opened`` says where the arrays of each structure begin, by
        destination rank.
        """
        by_source: dict[int, list[Write]] = defaultdict(list)
        for each in self.direct_copies:
            request = _target_tensors(self.structures[each.structure_number], each.destination)
            place = opened[each.destination][each.structure_number]
            if request.form is None or place is None:
                continue
            write = Write(
                rank=each.destination,
                place=place,
                form=request.form,
                paths=request.paths,
                give=each.give,
                take=each.take,
            )
            by_source[each.source].append(write)
        return by_source

    def targets_of(self, rank: int) -> tuple[TargetTensors, ...]:
        """The arrays that a destination rank will hold."""
        return tuple(_target_tensors(each, rank) for each in self.structures)


def arranged(
    tensors: Sequence[Tensor],
    source_nodes: Sequence[str],
    destination_nodes: Sequence[str],
    *,
    share_memory: bool = False,
) -> Round:
    """The objects for these tensors: one per source rank and set of ranks that receive the same of it.

    With ``share_memory`` there are none between ranks of one node, whose sources write to the destinations.
    """
    structures = tuple(_structures(tensors))
    arrangement = _Arrangement(source_nodes, destination_nodes, share_memory=share_memory)
    for number, structure in enumerate(structures):
        for source, exchanges in arrangement.sent(structure, number).items():
            arrangement.bundle(structure, source, exchanges)
    return Round(
        objects=tuple(arrangement.bundles.values()),
        direct_copies=tuple(arrangement.direct_copies),
        local=arrangement.local,
        structures=structures,
    )


class _Arrangement:
    """What becomes of the exchanges of a round, which are added one structure after the other."""

    def __init__(
        self, source_nodes: Sequence[str], destination_nodes: Sequence[str], *, share_memory: bool
    ) -> None:
        self._source_nodes, self._destination_nodes = source_nodes, destination_nodes
        self._share_memory = share_memory
        self.bundles: dict[tuple[int, tuple[int, ...]], SourceObject] = {}
        self.local: dict[int, list[OwnCopy]] = defaultdict(list)
        self.direct_copies: list[DirectCopy] = []

    def sent(self, structure: Structure, number: int) -> dict[int, list[Exchange]]:
        """The exchanges of a structure, by their sources, that go through the object store; notes the others:
        those within a rank, and those within a node where its ranks share memory.
        """
        sent: dict[int, list[Exchange]] = defaultdict(list)
        for exchange in structure.plan.exchanges():
            if exchange.local:
                self.local[exchange.destinations[0]].append(
                    OwnCopy(paths=structure.paths, give=exchange.give, take=exchange.take)
                )
                continue
            node = self._source_nodes[exchange.source] if self._share_memory else None
            beside = tuple(
                rank for rank in exchange.destinations if self._destination_nodes[rank] == node
            )
            self.direct_copies += (_direct_copy(exchange, rank, number) for rank in beside)
            if far := tuple(rank for rank in exchange.destinations if rank not in beside):
                rest = msgspec.structs.replace(exchange, destinations=far) if beside else exchange
                sent[exchange.source].append(rest)
        return sent

    def bundle(self, structure: Structure, source: int, exchanges: Sequence[Exchange]) -> None:
        """Add what a source sends of a structure to its objects, one for each set of receivers."""
        near = _served_whole(
            structure.plan,
            source,
            exchanges,
            self._source_nodes[source],
            self._destination_nodes,
        )
        for ranks, slices, copies in _objects(structure, source, exchanges, near):
            bundle = self.bundles.setdefault(
                (source, ranks),
                SourceObject(
                    source=source,
                    destinations=ranks,
                    slices=[],
                    copies={rank: [] for rank in ranks},
                ),
            )
            bundle.slices.append(slices)
            for rank in ranks:
                bundle.copies[rank].append(copies[rank])


def _direct_copy(exchange: Exchange, rank: int, structure_number: int) -> DirectCopy:
    """What the source of an exchange copies into the new arrays of one of its destinations."""
    return DirectCopy(
        source=exchange.source,
        destination=rank,
        structure_number=structure_number,
        give=exchange.give,
        take=exchange.take,
    )


def _structures(tensors: Sequence[Tensor]) -> Iterator[Structure]:
    alike: dict[tuple[object, ...], list[Tensor]] = defaultdict(list)
    for each in tensors:
        made = each.plan
        alike[made.source, made.destination, made.shape, made.rotation, each.form.kind].append(each)
    for some in alike.values():
        yield Structure(
            paths=tuple(each.path for each in some), form=some[0].form, plan=some[0].plan
        )


def _served_whole(
    plan: Plan, source: int, exchanges: Sequence[Exchange], node: str, nodes: Sequence[str]
) -> frozenset[int]:
    """The ranks that get the whole part of a source, because those of their node need most of it."""
    needed: dict[str, int] = defaultdict(int)
    ranks: dict[str, set[int]] = defaultdict(set)
    for exchange in exchanges:
        elements = sum(map(_size, exchange.give))
        for where in {nodes[rank] for rank in exchange.destinations}:
            needed[where] += elements
        for rank in exchange.destinations:
            ranks[nodes[rank]].add(rank)
    size = math.prod(_local_shape(plan, source))
    served: set[int] = set()
    for where, elements in needed.items():
        if elements >= size * (WHOLE_ON_OWN_NODE if where == node else 1.0):
            served |= ranks[where]
    return frozenset(served)


def _objects(
    structure: Structure, source: int, exchanges: Sequence[Exchange], near: frozenset[int]
) -> Iterator[tuple[tuple[int, ...], Slices, Mapping[int, tuple[Copy, ...]]]]:
    """For each set of receivers the slices that they get, and what each of them copies."""
    full_box = tuple((0, size) for size in _local_shape(structure.plan, source))
    parts: dict[int, list[Copy]] = {rank: [] for rank in sorted(near)}
    slices: dict[tuple[int, ...], tuple[list[Box], list[Box]]] = {}
    for exchange in exchanges:
        for rank in near.intersection(exchange.destinations):
            parts[rank] += [
                Copy(box=0, part=None if give == full_box else give, take=take)
                for give, take in zip(exchange.give, exchange.take, strict=True)
            ]
        far = tuple(rank for rank in exchange.destinations if rank not in near)
        if far:
            gives, takes = slices.setdefault(far, ([], []))
            gives += exchange.give
            takes += exchange.take
    if parts:
        full_slices = Slices(paths=structure.paths, boxes=(full_box,))
        yield tuple(parts), full_slices, {rank: tuple(copies) for rank, copies in parts.items()}
    for far, (gives, takes) in slices.items():
        same = tuple(Copy(box=at, part=None, take=take) for at, take in enumerate(takes))
        yield far, Slices(paths=structure.paths, boxes=tuple(gives)), dict.fromkeys(far, same)


def _local_shape(plan: Plan, source: int) -> tuple[int, ...]:
    return plan.routes.source.local_shape(source) or ()


def _size(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _target_tensors(structure: Structure, rank: int) -> TargetTensors:
    pieces = structure.plan.routes.destination.of_rank(rank)
    if pieces is None:
        return TargetTensors(paths=structure.paths, form=None)
    shape = tuple(piece.size for piece in pieces)
    is_unpadded = all(piece.size == piece.length for piece in pieces)
    if not is_unpadded and structure.plan.destination.pad_value is None:
        raise InvalidRequestError(
            f"{spelled(structure.paths[0])}: pad_value=None for an array of {structure.form.kind}, of which "
            f"rank {rank} has padding; allowed is a value of that dtype"
        )
    return TargetTensors(
        paths=structure.paths,
        form=msgspec.structs.replace(structure.form, shape=shape),
        fill=None if is_unpadded else structure.plan.destination.pad_value,
    )
