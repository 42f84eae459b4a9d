"""The mixin that lets ``reshard`` move an agent's tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from schedulemesh.core.transport.arrays import wrapped
from schedulemesh.core.worker_groups.array_slices import (
    allocated,
    array_at,
    as_tensors,
    in_block,
    index,
    put,
    received,
    sample,
    shared,
    sliced,
    slices_of,
    values,
)
from schedulemesh.core.worker_groups.array_trees import ArrayTree, Path, arrays, filled, outline
from schedulemesh.core.worker_groups.shards import (
    Bundle,
    Held,
    KeepOrder,
    OpenOrder,
    Slices,
    TakeOrder,
    WorkerStatus,
    Write,
    form_of,
)
from schedulemesh.core.worker_groups.shared_memory import BlockOffsets, Blocks, MappedBlocks
from schedulemesh.domain.user_data import UserArray
from schedulemesh.errors import InvalidRequestError


class Arriving:
    """What has arrived of a move that is not complete."""

    def __init__(self, move_id: str) -> None:
        self.move_id = move_id
        self.arrays: dict[Path, UserArray] = {}
        self.rounds = 0

    def add(self, new: Mapping[Path, UserArray]) -> None:
        """Add the arrays of a further round."""
        self.arrays.update(new)
        self.rounds += 1


class ShardHolder:
    """Mixin for an agent's class that lets ``reshard`` move the agent's tensors.

    The agent holds trees under keys: arrays, or dicts, lists and tuples of them, with numbers and strings
    beside them. A class that has its own model overrides ``shards`` and ``keep_shards``, for example to
    return ``state_dict()`` and to copy into parameters, and ``whole_shapes`` if its model knows them; the
    other methods are called by ``reshard``. It needs no ``__init__`` and works with any base class.
    """

    def shards(self, key: str) -> ArrayTree:
        """The tree held under ``key``. An error lists the keys that are held."""
        trees = self._trees()
        if key not in trees:
            raise InvalidRequestError(f"nothing is held under {key!r}; there are {sorted(trees)}")
        return trees[key]

    def keep_shards(self, tree: ArrayTree, key: str) -> None:
        """Store a tree under ``key``, replacing what was held there.

        A move calls this once, when the whole tree has arrived on all ranks; the arrays are the agent's own
        copy.
        """
        self._trees()[key] = tree
        self._state("shapes").pop(key, None)

    def whole_shapes(self, key: str) -> Mapping[str, Sequence[int]]:
        """The shapes of the whole tensors under ``key``, by path ("layer/weight"), as far as they are known.

        By default those with which the last move to this agent was planned.
        """
        shapes: Mapping[str, Sequence[int]] = self._state("shapes").get(key, {})
        return shapes

    def shard_version(self, key: str) -> int | None:
        """The number of the move that has brought what is held under ``key``; None: none has."""
        version: int | None = self._state("versions").get(key)
        return version

    def shard_status(self, key: str) -> WorkerStatus:
        """Where the worker runs, and which move has brought what it holds."""
        return WorkerStatus(node=_node(), version=self.shard_version(key))

    def describe_shards(self, key: str, samples: bool) -> Held | None:
        """What is held under ``key``, with samples of the arrays if they are asked for; None: nothing."""
        try:
            tree = self.shards(key)
        except InvalidRequestError:
            return None
        outlined = outline(tree)
        by_path = dict(arrays(tree))
        return Held(
            forms={path: form_of(array) for path, array in by_path.items()},
            outline=outlined,
            shapes={path: tuple(shape) for path, shape in self.whole_shapes(key).items()},
            samples={path: sample(array) for path, array in by_path.items()} if samples else {},
            node=_node(),
        )

    def give_shards(self, key: str, bundles: Sequence[Sequence[Slices]]) -> tuple[object, ...]:
        """None, then the slices of each bundle: each bundle is a separate object in Ray."""
        by_path = dict(arrays(self.shards(key)))
        return (None, *(wrapped(slices_of(by_path, each), copy=False) for each in bundles))

    def give_tensors(self, key: str, slices: Sequence[Slices]) -> list[UserArray]:
        """The slices of one bundle as tensors, for direct transports, which know no other arrays."""
        return as_tensors(slices_of(dict(arrays(self.shards(key))), slices))

    def open_shards(self, order: OpenOrder) -> list[BlockOffsets | None]:
        """Make new arrays into which others write, and which ``commit_shards`` stores.

        Returns where the arrays of each form begin; None: they have no elements.
        """
        places, made = shared(self._blocks(order.into), order.targets, order.move_id)
        self._arriving(order.into, order.move_id).add(made)
        return places

    def write_shards(self, key: str, writes: Sequence[Write]) -> dict[int, int]:
        """Copy slices of what is held under ``key`` into the new arrays of others on this node.

        Returns the bytes written by rank.
        """
        by_path = dict(arrays(self.shards(key)))
        mapped: MappedBlocks = self._state("mapped").setdefault("", MappedBlocks())
        came: dict[int, int] = defaultdict(int)
        for each in writes:
            boxes = [(index(a), index(b)) for a, b in zip(each.give, each.take, strict=True)]
            memory = mapped.array_at(each.place.location)[each.place.offset :]
            new = in_block(memory, each.form, len(each.paths))
            for path, array in zip(each.paths, new, strict=True):
                source = values(array_at(by_path, path))
                for here, there in boxes:
                    part = source[here]
                    array[there] = part
                    came[each.rank] += part.nbytes
        return dict(came)

    def take_shards(self, order: TakeOrder, *bundles: Sequence[UserArray]) -> int:
        """Copy what arrived into new arrays, which ``commit_shards`` stores; returns the bytes received."""
        arriving = self._arriving(order.into, order.move_id)
        if order.targets is not None:
            arriving.add(allocated(order.targets))
        if order.local:
            self._copy_own(order, arriving.arrays)
        return sum(
            _unpack(bundle, arrived, arriving.arrays)
            for bundle, arrived in zip(order.bundles, bundles, strict=True)
        )

    def commit_shards(self, order: KeepOrder) -> None:
        """Store the tree of a move, all of which has arrived on all ranks."""
        arrived: Arriving | None = self._state("moves").get(order.key)
        if arrived is None or (arrived.move_id, arrived.rounds) != (order.move_id, order.rounds):
            raise InvalidRequestError(
                f"what has arrived of move {order.move_id} was dropped, because it failed or another move to "
                f"{order.key!r} began; move again"
            )
        del self._state("moves")[order.key]
        self._blocks(order.key).completed(order.move_id)
        self.keep_shards(filled(order.outline, arrived.arrays), order.key)
        self._state("versions")[order.key] = order.version
        self._state("shapes")[order.key] = order.shapes

    def drop_shards(self, key: str, move_id: str) -> None:
        """Forget what has arrived under a key of a move that failed."""
        moves = self._state("moves")
        if key in moves and moves[key].move_id == move_id:
            del moves[key]

    def _arriving(self, key: str, move_id: str) -> Arriving:
        """What has arrived of a move. What has arrived of another one to the same key is dropped."""
        moves: dict[str, Arriving] = self._state("moves")
        if key not in moves or moves[key].move_id != move_id:
            moves[key] = Arriving(move_id)
        return moves[key]

    def _blocks(self, key: str) -> Blocks:
        blocks: Blocks = self._state("blocks").setdefault(key, Blocks())
        return blocks

    def _copy_own(self, order: TakeOrder, targets: Mapping[Path, UserArray]) -> None:
        sources = dict(arrays(self.shards(order.source_key)))
        for copy in order.local:
            for path in copy.paths:
                for here, there in zip(copy.give, copy.take, strict=True):
                    put(targets[path], there, sliced(sources[path], here))

    def _trees(self) -> dict[str, ArrayTree]:
        return self._state("trees")

    def _state(self, name: str) -> dict[str, Any]:
        """State of this mixin, which has no ``__init__``."""
        states: dict[str, dict[str, Any]] = self.__dict__.setdefault("_sm_shards", {})
        return states.setdefault(name, {})


def _node() -> str:
    """The node of this process; empty outside of Ray."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _unpack(
    bundle: Bundle,
    arrived: Sequence[UserArray],
    targets: Mapping[Path, UserArray],
) -> int:
    """Copies what arrived in one object to where it belongs; returns the bytes copied."""
    came = 0
    for number, path, boxes in received(arrived, bundle.slices, targets):
        for copy in bundle.copies[number]:
            box = boxes[copy.box]
            part = box if copy.part is None else sliced(box, copy.part)
            put(targets[path], copy.take, part)
            came += part.nbytes
    return came
