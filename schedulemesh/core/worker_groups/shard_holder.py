"""The mixin that lets ``reshard`` move an agent's tensors."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from schedulemesh.core.transport.arrays import wrapped
from schedulemesh.core.worker_groups.shards import (
    ArrayTree,
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
from schedulemesh.domain.user_data import UserArray
from schedulemesh.errors import InvalidRequestError


class ShardHolder:
    """Mixin for an agent's class that lets ``reshard`` move the agent's tensors.

    The agent holds trees (an array, or dicts of them) under keys. A class that has its own model overrides
    ``shards`` and ``keep_shards``, for example to return ``state_dict()`` and to copy into parameters; the
    other methods are called by ``reshard``. It needs no ``__init__`` and works with any base class.
    """

    def shards(self, key: str) -> ArrayTree:
        """The tree held under ``key``. An error lists the keys that are held."""
        held = self._trees()
        if key not in held:
            raise InvalidRequestError(f"nothing is held under {key!r}; there are {sorted(held)}")
        return held[key]

    def keep_shards(self, tree: ArrayTree, key: str) -> None:
        """Store a tree under ``key``, replacing what was held there.

        A move calls this once, when the whole tree has arrived; the arrays are the agent's own copy.
        """
        self._trees()[key] = tree

    def describe_shards(self, key: str) -> dict[Path, Form]:
        """The forms of the arrays under ``key``, by path; empty if nothing is held."""
        try:
            tree = self.shards(key)
        except InvalidRequestError:
            return {}
        return {path: form_of(array) for path, array in leaves(tree)}

    def give_shards(self, key: str, bundles: Sequence[Sequence[Slice]]) -> tuple[object, ...]:
        """None, then the slices of each bundle: each bundle is a separate object in Ray."""
        held = dict(leaves(self.shards(key)))
        return (
            None,
            *(wrapped([_sliced(held, each) for each in bundle], own=False) for bundle in bundles),
        )

    def take_shards(self, order: TakeOrder, *bundles: Sequence[UserArray]) -> int:
        """Copy what arrived into new arrays, stored after the last round; returns the bytes received."""
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

    def _arrived(self, order: TakeOrder, found: Mapping[Path, UserArray]) -> None:
        """Adds to the arrays of earlier rounds of the same move; those of an abandoned move are dropped."""
        moves: dict[str, tuple[str, dict[Path, UserArray]]] = self.__dict__.setdefault(
            "_sm_moves", {}
        )
        move_id, arrived = moves.pop(order.key, (order.move_id, {}))
        if move_id != order.move_id:
            arrived = {}
        arrived.update(found)
        if order.last:
            self.keep_shards(tree_of(arrived), order.key)
        else:
            moves[order.key] = (order.move_id, arrived)

    def _trees(self) -> dict[str, ArrayTree]:
        trees: dict[str, ArrayTree] = self.__dict__.setdefault("_sm_shards", {})
        return trees


def _sliced(held: Mapping[Path, UserArray], each: Slice) -> UserArray:
    if each.path not in held:
        raise InvalidRequestError(f"there is no array at {spelled(each.path)} any more")
    array = held[each.path]
    if is_torch(array):
        array = array.detach()
    return array[_slices(each.box)] if each.box else array


def _put(found: Mapping[Path, UserArray], each: Slice, array: UserArray) -> None:
    found[each.path][_slices(each.box) if each.box else ...] = array


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def _new(wanted: Wanted) -> UserArray:
    """An array of the wanted form, filled if not all of it will be overwritten."""
    form = wanted.form
    if form is None:
        return None
    library = importlib.import_module(form.library)
    dtype = getattr(library, form.dtype) if form.library == "torch" else library.dtype(form.dtype)
    if wanted.fill is None:
        return library.empty(form.shape, dtype=dtype)
    return library.full(form.shape, wanted.fill, dtype=dtype)
