"""What an agent needs so that its tensors can be moved: give slices of them, take others."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from schedulemesh.core.transport.arrays import wrapped
from schedulemesh.core.worker_groups.shards import (
    Box,
    Form,
    Path,
    Slice,
    TakeOrder,
    Wanted,
    form_of,
    leaves,
    spelled,
    tree_of,
)
from schedulemesh.dispatch.arrays import is_torch
from schedulemesh.errors import InvalidRequestError


class ShardHolder:
    """Mixed into an agent's class, it lets ``reshard`` move the agent's tensors.

    The agent holds trees (an array, or dicts of them) under keys. A class with a model of its own overrides
    ``shards`` and ``keep_shards``, say to give ``state_dict()`` and to copy into parameters; the other
    methods are called by ``reshard``. It needs no ``__init__`` and goes with any base.
    """

    def shards(self, key: str) -> Any:
        """The tree held under ``key``; an error that names those that are."""
        held = self._trees()
        if key not in held:
            raise InvalidRequestError(f"nothing is held under {key!r}; there are {sorted(held)}")
        return held[key]

    def keep_shards(self, tree: Any, key: str) -> None:
        """Hold a tree under ``key``, in place of what was held there.

        A move calls this once, when all of it has arrived; the arrays are the agent's own.
        """
        self._trees()[key] = tree

    def describe_shards(self, key: str) -> dict[Path, Form]:
        """What the tree under ``key`` is like; empty where nothing is held."""
        try:
            tree = self.shards(key)
        except InvalidRequestError:
            return {}
        return {path: form_of(array) for path, array in leaves(tree)}

    def give_shards(self, key: str, bundles: Sequence[Sequence[Slice]]) -> tuple[Any, ...]:
        """None, then for each bundle the slices in it: each bundle is an object of its own in Ray."""
        held = dict(leaves(self.shards(key)))
        return (
            None,
            *(wrapped([_sliced(held, each) for each in bundle], own=False) for bundle in bundles),
        )

    def take_shards(self, order: TakeOrder, *bundles: Sequence[Any]) -> int:
        """Put what came into arrays of its own, and after the last round keep them; the bytes that came."""
        found = {wanted.path: _new(wanted) for wanted in order.wanted}
        if order.local:
            own = dict(leaves(self.shards(order.source_key)))
            for here, there in order.local:
                _put(found, there, _sliced(own, here))
        came = 0
        for slices, arrays in zip(order.bundles, bundles, strict=True):
            for each, array in zip(slices, arrays, strict=True):
                _put(found, each, array)
                came += array.nbytes
        self._arrived(order, found)
        return came

    def _arrived(self, order: TakeOrder, found: Mapping[Path, Any]) -> None:
        """Adds to what earlier rounds of the same move brought; that of an abandoned move is dropped."""
        moves: dict[str, tuple[str, dict[Path, Any]]] = self.__dict__.setdefault("_sm_moves", {})
        move_id, arrived = moves.pop(order.key, (order.move_id, {}))
        if move_id != order.move_id:
            arrived = {}
        arrived.update(found)
        if order.last:
            self.keep_shards(tree_of(arrived), order.key)
        else:
            moves[order.key] = (order.move_id, arrived)

    def _trees(self) -> dict[str, Any]:
        trees: dict[str, Any] = self.__dict__.setdefault("_sm_shards", {})
        return trees


def _sliced(held: Mapping[Path, Any], each: Slice) -> Any:
    if each.path not in held:
        raise InvalidRequestError(f"there is no array at {spelled(each.path)} any more")
    array = held[each.path]
    if is_torch(array):
        array = array.detach()
    return array[_slices(each.box)] if each.box else array


def _put(found: Mapping[Path, Any], each: Slice, array: Any) -> None:
    found[each.path][_slices(each.box) if each.box else ...] = array


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def _new(wanted: Wanted) -> Any:
    """An array of the wanted form, filled where that matters."""
    form = wanted.form
    if form is None:
        return None
    library = importlib.import_module(form.library)
    dtype = getattr(library, form.dtype) if form.library == "torch" else library.dtype(form.dtype)
    if wanted.fill is None:
        return library.empty(form.shape, dtype=dtype)
    return library.full(form.shape, wanted.fill, dtype=dtype)
