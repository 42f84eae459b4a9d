"""Moves tensors from one group's layout to another's: workers fetch directly from workers.

The driver queries what the source's workers hold, plans the move, and calls the workers. Each source returns
one Ray object per bundle: all of its slices that go to the same workers, so that replicas share one object
and a model of many small tensors needs few. Each destination gets the references of its bundles as arguments;
Ray transfers them from worker to worker, and the driver never holds a value.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from ray import ObjectRef

from schedulemesh.core.worker_groups.move_plan import Shapes, Tensor, planned
from schedulemesh.core.worker_groups.shards import Form, Path, Slice, TakeOrder, Wanted
from schedulemesh.core.worker_groups.worker_calls import Call, results
from schedulemesh.dispatch.plan import Plan
from schedulemesh.dispatch.trees import Spec, ranks_of
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.core.worker_groups.group import WorkerGroup

#: Maximum bytes that one round of a move puts into the object store, unless one tensor has more.
ROUND_BYTES = 1 << 30
#: The methods that agents need for a move.
_METHODS = ("describe_shards", "give_shards", "take_shards")


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a move."""

    #: By path, joined with "/" (empty: the tree is one tensor).
    plans: dict[str, Plan]
    #: Bytes that each agent of the destination received from other agents.
    received: dict[str, int]
    rounds: int
    seconds: float

    @property
    def bytes_moved(self) -> int:
        """Total bytes sent from one agent to another."""
        return sum(self.received.values())


class _Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of one source rank that go to the same destination ranks: one object in Ray."""

    source: int
    gives: list[Slice]
    #: By destination rank, the destination of each slice.
    takes: dict[int, list[Slice]]


def reshard(
    src_group: WorkerGroup,
    dst_group: WorkerGroup,
    key: str,
    *,
    source: Spec,
    destination: Spec,
    into: str | None = None,
    shapes: Shapes = None,
    timeout_s: float | None = 600.0,
    round_bytes: int = ROUND_BYTES,
) -> Moved:
    """Moves the tree held under ``key`` on ``src_group`` to ``dst_group``, under ``into`` (None: ``key``).

    ``source`` and ``destination`` define the sharding of each tensor on each group: one ``Sharding`` for all,
    or a dict with the structure of the tree. Agents of both groups derive from ``ShardHolder``; the groups
    may share agents, or be the same. The shapes of the whole tensors are computed from what the workers hold;
    if the source pads, they must be given, one for all or by path ("layer/weight"). Large trees are moved in
    rounds of at most ``round_bytes``; each destination stores its tree when all of it has arrived.
    ``timeout_s`` limits the whole move; None: no limit.

    Raises ``InvalidRequestError`` if what is held does not fit the specs, and ``WorkerError`` with group,
    rank and agent if a worker dies, fails or times out; the destinations then hold what they held before,
    except those that had already received their whole tree.
    """
    began = time.monotonic()
    until = None if timeout_s is None else began + timeout_s
    _check(src_group, source, "source")
    _check(dst_group, destination, "destination")
    held = _described(src_group, key, until)
    tensors = list(planned(src_group, dst_group, source, destination, held, shapes, key))
    rounds = list(_rounds(tensors, round_bytes))
    received = dict.fromkeys(dst_group.agents, 0)
    move_id = uuid.uuid4().hex
    for number, some in enumerate(rounds, 1):
        came = _round(
            src_group, dst_group, some, (move_id, key, into or key), number == len(rounds), until
        )
        for agent, size in zip(dst_group.agents, came, strict=True):
            received[agent] += size
    return Moved(
        plans={"/".join(map(str, each.path)): each.plan for each in tensors},
        received=received,
        rounds=len(rounds),
        seconds=time.monotonic() - began,
    )


def _check(group: WorkerGroup, spec: Spec, side: str) -> None:
    if (ranks := ranks_of(spec)) != group.layout.size:
        raise InvalidRequestError(
            f"the {side} spec is for {ranks} ranks; group {group.name} has {group.layout.size}"
        )
    for method in _METHODS:
        group.require(method, "derive its class from ShardHolder")


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.0)


def _described(group: WorkerGroup, key: str, until: float | None) -> dict[Path, dict[int, Form]]:
    """What the ranks hold under ``key``, by path and rank."""
    found: dict[Path, dict[int, Form]] = {}
    calls = [group.ask(rank, "describe_shards", key) for rank in group.ranks]
    for rank, forms in enumerate(results(calls, _left(until))):
        for path, form in forms.items():
            found.setdefault(path, {})[rank] = form
    if not found:
        raise InvalidRequestError(f"no agent of group {group.name} holds anything under {key!r}")
    return found


def _rounds(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """The tensors in order, in rounds of at most ``limit`` bytes."""
    some: list[Tensor] = []
    size = 0
    for each in tensors:
        if some and size + each.plan.bytes_moved > limit:
            yield some
            some, size = [], 0
        some.append(each)
        size += each.plan.bytes_moved
    yield some


def _round(
    src_group: WorkerGroup,
    dst_group: WorkerGroup,
    tensors: Sequence[Tensor],
    names: tuple[str, str, str],
    last: bool,
    until: float | None,
) -> list[int]:
    """Executes one round; returns the bytes received by destination rank."""
    bundles, local = _bundled(tensors, dst_group.layout.size)
    gives, refs = _give(src_group, bundles, names[1])
    takes = []
    for rank in dst_group.ranks:
        mine = [at for at, bundle in enumerate(bundles) if rank in bundle.takes]
        order = TakeOrder(
            move_id=names[0],
            source_key=names[1],
            key=names[2],
            wanted=tuple(_wanted(each, rank) for each in tensors),
            local=tuple(local[rank]),
            bundles=tuple(tuple(bundles[at].takes[rank]) for at in mine),
            last=last,
        )
        takes.append(dst_group.ask(rank, "take_shards", order, *(refs[at] for at in mine)))
    return [int(came) for came in results([*gives, *takes], _left(until))[len(gives) :]]


def _give(
    group: WorkerGroup, bundles: Sequence[_Bundle], key: str
) -> tuple[list[Call], dict[int, ObjectRef]]:
    """A call per source that completes when the source is done, and by bundle its object reference."""
    calls: list[Call] = []
    refs: dict[int, ObjectRef] = {}
    for rank in group.ranks:
        mine = [at for at, bundle in enumerate(bundles) if bundle.source == rank]
        if mine:
            asked = [bundles[at].gives for at in mine]
            call, *given = group.ask_many(rank, "give_shards", len(mine) + 1, key, asked)
            calls.append(call)
            refs.update(zip(mine, (each.ref for each in given), strict=True))
    return calls, refs


def _bundled(
    tensors: Sequence[Tensor], ranks: int
) -> tuple[list[_Bundle], list[list[tuple[Slice, Slice]]]]:
    """The bundles of all sources, and by destination rank the slices that it copies locally."""
    local: list[list[tuple[Slice, Slice]]] = [[] for _ in range(ranks)]
    wants: dict[tuple[int, Slice], dict[int, Slice]] = {}
    for each in tensors:
        for transfer in each.plan.transfers():
            give = Slice(path=each.path, box=transfer.give)
            take = Slice(path=each.path, box=transfer.take)
            if transfer.local:
                local[transfer.destination].append((give, take))
            else:
                wants.setdefault((transfer.source, give), {})[transfer.destination] = take
    bundles: dict[tuple[int, ...], _Bundle] = {}
    for (source, give), takes in wants.items():
        bundle = bundles.setdefault(
            (source, *takes), _Bundle(source=source, gives=[], takes={rank: [] for rank in takes})
        )
        bundle.gives.append(give)
        for rank, take in takes.items():
            bundle.takes[rank].append(take)
    return list(bundles.values()), local


def _wanted(tensor: Tensor, rank: int) -> Wanted:
    held = tensor.plan.routes.destination.of_rank(rank)
    if held is None:
        return Wanted(path=tensor.path, form=None)
    shape = tuple(piece.size for piece in held)
    whole = all(piece.size == piece.length for piece in held)
    return Wanted(
        path=tensor.path,
        form=msgspec.structs.replace(tensor.form, shape=shape),
        fill=None if whole else tensor.plan.destination.pad_value,
    )
