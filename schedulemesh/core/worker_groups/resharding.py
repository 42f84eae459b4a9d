"""Moves tensors from one group's layout to another's: workers fetch directly from workers.

The driver asks what the source's workers hold, plans the move, and calls the workers. Each source returns one
Ray object per set of workers that receive the same of it, with the slices of all tensors, so that replicas
share one object and a model of many small tensors needs few. Each destination gets the references of its
objects as arguments; Ray transfers them from worker to worker, and the driver never holds a value. With
shared memory the destinations first say where their new arrays lie, and the sources on their nodes write to
them. When everything has arrived everywhere, the destinations store their trees.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec
from ray import ObjectRef

from schedulemesh.core.worker_groups.direct_transport import (
    DIRECT,
    OBJECT_STORE,
    SHARED_MEMORY,
    Transport,
    check_tensors,
    prepare,
)
from schedulemesh.core.worker_groups.move_bundles import Round, arranged
from schedulemesh.core.worker_groups.move_plan import (
    Shapes,
    Tree,
    has_replicas,
    in_rounds,
    planned,
)
from schedulemesh.core.worker_groups.shards import (
    Held,
    KeepOrder,
    OpenOrder,
    TakeOrder,
    WorkerStatus,
)
from schedulemesh.core.worker_groups.worker_calls import WorkerCall, results
from schedulemesh.dispatch.plan import Plan
from schedulemesh.dispatch.trees import Spec, ranks_of
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.core.worker_groups.group import WorkerGroup

#: Maximum bytes that a move has in the object store at a time, unless one tensor has more.
ROUND_BYTES = 1 << 30
#: Rounds that are in progress at a time: while one is copied, the next is fetched.
_AT_A_TIME = 2
#: The methods that agents need for a move.
_METHODS = (
    "describe_shards",
    "open_shards",
    "write_shards",
    "give_shards",
    "take_shards",
    "commit_shards",
)


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a move."""

    #: By path, joined with "/" (empty: the tree is one tensor).
    plans: dict[str, Plan]
    #: Bytes that each agent of the destination received from other agents.
    received: dict[str, int]
    #: The version that each destination rank now holds; see ``ShardHolder.shard_version``.
    version: int
    rounds: int
    seconds: float

    @property
    def bytes_moved(self) -> int:
        """Total bytes sent from one agent to another."""
        return sum(self.received.values())


class _Move(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A move in progress."""

    src_group: WorkerGroup
    dst_group: WorkerGroup
    #: The key of the tree at the source, and at the destination.
    key: str
    into: str
    #: The nodes of the workers, by rank.
    source_nodes: tuple[str, ...]
    destination_nodes: tuple[str, ...]
    id: str
    transport: Transport
    #: When the time of the move is over, on the monotonic clock; None: never.
    until: float | None

    @property
    def remaining_s(self) -> float | None:
        """The seconds that are left for the move; None: no limit."""
        return None if self.until is None else max(self.until - time.monotonic(), 0.0)


class _Calls(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The calls of a round in progress; those of the sources come first, so that errors name them."""

    gives: list[WorkerCall]
    #: Each returns the bytes written by destination rank.
    writes: list[WorkerCall]
    #: Each returns the bytes received.
    takes: list[WorkerCall]


def reshard(
    src_group: WorkerGroup,
    dst_group: WorkerGroup,
    key: str,
    *,
    source: Spec,
    destination: Spec,
    into: str | None = None,
    shapes: Shapes = None,
    check_replicas: bool = True,
    version: int | None = None,
    timeout_s: float | None = 600.0,
    round_bytes: int = ROUND_BYTES,
    transport: Transport = OBJECT_STORE,
) -> Moved:
    """Moves the tree held under ``key`` on ``src_group`` to ``dst_group``, under ``into`` (None: ``key``).

    ``source`` and ``destination`` define the sharding of each tensor on each group: one ``Sharding`` for all,
    or a dict with the structure of the tree. Agents of both groups derive from ``ShardHolder``; the groups
    may share agents, or be the same. ``shapes`` gives the shapes of the whole tensors that the source splits,
    one for all or by path ("layer/weight"), unless the agents know them (``ShardHolder.whole_shapes``). With
    ``check_replicas`` a sample of what several ranks hold by the spec must be the same on them. Large trees
    are moved in rounds, so that at most ``round_bytes`` are in the object store. ``timeout_s`` limits the
    whole move; None: no limit. With ``transport="shared_memory"`` the workers of a node write straight into
    the new arrays of others there. ``transport="gloo"`` sends torch tensors on the CPU from process to
    process, not through the object store, between agents with
    ``ray_options={"enable_tensor_transport": True}``.

    When all of the tree has arrived on all ranks, each stores it, as ``version`` (None: the highest that a
    rank holds, and one). Raises ``InvalidRequestError`` if what is held does not fit the specs, and
    ``WorkerError`` with group, rank and agent if a worker dies, fails or times out; the destinations then
    hold what they held before, unless a worker failed while they stored the tree: ``shard_version`` says
    which of them has done so.
    """
    began = time.monotonic()
    until = None if timeout_s is None else began + timeout_s
    _check(src_group, source, "source")
    _check(dst_group, destination, "destination")
    into = key if into is None else into
    prepare(transport, (src_group, dst_group))
    sources, statuses = _described(
        src_group, dst_group, (key, into), check_replicas and has_replicas(source), until
    )
    tree = planned(src_group, dst_group, source, destination, sources, shapes, key)
    check_tensors(transport, (tensor.form for tensor in tree.tensors), key)
    move = _Move(
        src_group=src_group,
        dst_group=dst_group,
        key=key,
        into=into,
        source_nodes=tuple(
            sources[rank].node if rank in sources else "" for rank in src_group.ranks
        ),
        destination_nodes=tuple(status.node for status in statuses),
        id=uuid.uuid4().hex,
        transport=transport,
        until=until,
    )
    version = 1 + max(status.version or 0 for status in statuses) if version is None else version
    try:
        rounds, received = _transfer(move, tree, round_bytes)
    except BaseException:
        for rank in dst_group.ranks:
            dst_group.ask(rank, "drop_shards", into, move.id)
        raise
    _commit(move, tree, version, rounds)
    return Moved(
        plans={"/".join(map(str, tensor.path)): tensor.plan for tensor in tree.tensors},
        received=dict(zip(dst_group.agents, received, strict=True)),
        version=version,
        rounds=rounds,
        seconds=time.monotonic() - began,
    )


def _check(group: WorkerGroup, spec: Spec, side: str) -> None:
    if (ranks := ranks_of(spec)) != group.layout.size:
        raise InvalidRequestError(
            f"the {side} spec is for {ranks} ranks; group {group.name} has {group.layout.size}"
        )
    for method in _METHODS:
        group.require(method, "derive its class from ShardHolder")


def _described(
    src_group: WorkerGroup,
    dst_group: WorkerGroup,
    keys: tuple[str, str],
    samples: bool,
    until: float | None,
) -> tuple[dict[int, Held], list[WorkerStatus]]:
    """What the source's ranks hold, by rank, and the state of the destination's ranks."""
    calls = [src_group.ask(rank, "describe_shards", keys[0], samples) for rank in src_group.ranks]
    calls += [dst_group.ask(rank, "shard_status", keys[1]) for rank in dst_group.ranks]
    remaining_s = None if until is None else max(until - time.monotonic(), 0.0)
    answers = results(calls, remaining_s)
    source_count = src_group.layout.size
    by_rank = {
        rank: answer for rank, answer in enumerate(answers[:source_count]) if answer is not None
    }
    if not by_rank:
        raise InvalidRequestError(
            f"no agent of group {src_group.name} holds anything under {keys[0]!r}"
        )
    return by_rank, answers[source_count:]


def _transfer(move: _Move, tree: Tree, round_bytes: int) -> tuple[int, list[int]]:
    """Brings everything to the destinations; returns the number of rounds and the bytes received by rank."""
    received: Counter[int] = Counter()
    running: deque[_Calls] = deque()
    rounds = 0
    for some in in_rounds(tree.tensors, max(round_bytes // _AT_A_TIME, 1)):
        rounds += 1
        round_ = arranged(
            some,
            move.source_nodes,
            move.destination_nodes,
            share_memory=move.transport == SHARED_MEMORY,
        )
        running.append(_round(move, round_))
        if len(running) == _AT_A_TIME:
            _complete(running.popleft(), received, move.remaining_s)
    while running:
        _complete(running.popleft(), received, move.remaining_s)
    return rounds, [received[rank] for rank in move.dst_group.ranks]


def _complete(calls: _Calls, received: Counter[int], timeout_s: float | None) -> None:
    """Waits for a round, and adds the bytes received by destination rank."""
    answers = results([*calls.gives, *calls.writes, *calls.takes], timeout_s)[len(calls.gives) :]
    for call, came in zip(calls.takes, answers[len(calls.writes) :], strict=True):
        received[call.rank] += came
    for written in answers[: len(calls.writes)]:
        received.update(written)


def _round(move: _Move, round_: Round) -> _Calls:
    """Starts a round."""
    share_memory = move.transport == SHARED_MEMORY
    writes = _write(move, round_) if share_memory else []
    gives, refs = _give(move, round_)
    takes = []
    for rank in move.dst_group.ranks:
        received_bundles = [
            index for index, sent_object in enumerate(round_.objects) if rank in sent_object.copies
        ]
        local = tuple(round_.local.get(rank, ()))
        if share_memory and not received_bundles and not local:
            continue
        order = TakeOrder(
            move_id=move.id,
            source_key=move.key,
            into=move.into,
            targets=None if share_memory else round_.targets_of(rank),
            local=local,
            bundles=tuple(round_.objects[index].bundle(rank) for index in received_bundles),
        )
        takes.append(
            move.dst_group.ask(
                rank, "take_shards", order, *(refs[index] for index in received_bundles)
            )
        )
    return _Calls(gives=gives, writes=writes, takes=takes)


def _write(move: _Move, round_: Round) -> list[WorkerCall]:
    """The destinations make their new arrays; then a call per source that writes to those on its node."""
    calls = [
        move.dst_group.ask(
            rank,
            "open_shards",
            OpenOrder(move_id=move.id, into=move.into, targets=round_.targets_of(rank)),
        )
        for rank in move.dst_group.ranks
    ]
    writes = round_.writes(results(calls, move.remaining_s))
    return [
        move.src_group.ask(rank, "write_shards", move.key, own_writes)
        for rank, own_writes in writes.items()
    ]


def _give(move: _Move, round_: Round) -> tuple[list[WorkerCall], dict[int, ObjectRef]]:
    """A call per source that completes when the source is done, and by object its reference."""
    calls: list[WorkerCall] = []
    refs: dict[int, ObjectRef] = {}
    by_source: dict[int, list[int]] = {}
    for index, sent_object in enumerate(round_.objects):
        by_source.setdefault(sent_object.source, []).append(index)
    for rank, numbers in by_source.items():
        slices = [round_.objects[index].slices for index in numbers]
        if move.transport in DIRECT:
            # What a direct transport brings is no object that this process could wait for.
            for index, each_slices in zip(numbers, slices, strict=True):
                arguments = (rank, "give_tensors", move.transport, move.key, each_slices)
                refs[index] = move.src_group.ask_directly(*arguments).ref
            continue
        call, *objects = move.src_group.ask_many(
            rank, "give_shards", len(numbers) + 1, move.key, slices
        )
        calls.append(call)
        refs.update(zip(numbers, (sent_object.ref for sent_object in objects), strict=True))
    return calls, refs


def _commit(move: _Move, tree: Tree, version: int, rounds: int) -> None:
    """Every destination rank stores its tree."""
    order = KeepOrder(
        move_id=move.id,
        key=move.into,
        version=version,
        rounds=rounds,
        outline=tree.outline,
        shapes={"/".join(map(str, tensor.path)): tensor.plan.shape for tensor in tree.tensors},
    )
    calls = [move.dst_group.ask(rank, "commit_shards", order) for rank in move.dst_group.ranks]
    results(calls, move.remaining_s)
