"""Distributes a batch to a group by a strategy: a spec, a name, or a plugin.

A plugin is any object with ``python_dispatch_fn(data, workers_a, workers_b)``, and optionally
``torch_dispatch_fn(tensor, workers_a, workers_b)`` for torch tensors; if that raises
``NotImplementedError``, the first is called. ``workers_a`` has the data, ``workers_b`` receives it; each has
a ``name``, ``ranks`` and a ``layout``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

import msgspec

from schedulemesh.dispatch.arrays import is_torch
from schedulemesh.dispatch.batches import Sharded, shard
from schedulemesh.dispatch.collecting import Reductions, reduced
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.placement import Shard, Sharding
from schedulemesh.dispatch.row_specs import spec_by_rows
from schedulemesh.dispatch.trees import ranks_of
from schedulemesh.errors import InvalidRequestError

#: The entry point group in which installed packages register strategies by name.
ENTRY_POINTS = "schedulemesh.dispatch_strategies"


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """A group as a strategy sees it."""

    name: str
    layout: ParallelLayout

    @property
    def ranks(self) -> range:
        """Its ranks, from 0."""
        return range(self.layout.size)


class Scattered(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A batch that a strategy has distributed."""

    #: By rank.
    parts: tuple[Any, ...]
    #: The information needed to collect results in order; None: the strategy returned plain parts.
    sharded: Sharded | None = None

    def collect(
        self, outputs: Sequence[Any], like: str | None = None, reduce: Reductions = None
    ) -> Any:
        """The results by rank as one batch, in the order of the data; see ``Sharded.collect``.

        If the strategy returned plain parts, only it knows their order: the results are returned by rank, or
        combined as ``reduce`` says.
        """
        if self.sharded is not None:
            return self.sharded.collect(outputs, like=like, reduce=reduce)
        return list(outputs) if reduce is None else reduced(outputs, reduce)


def scatter(data: Any, strategy: Any, workers_a: Any, workers_b: Any) -> Scattered:
    """Distributes the data to the ranks of ``workers_b``.

    ``strategy`` is a spec (a ``Sharding`` for everything, or one spec per key or list index, see ``shard``),
    a plugin or its class, or a name: "data_parallel" (rows over dp, in sizes that differ by at most one,
    replicated along other axes), "every_rank" (rows over all ranks), "replicate", or that of an entry point.
    The two that split rows replicate scalars, and refuse leaves with different numbers of rows and values of
    unknown types. A plugin returns one part per rank, or a ``Sharding`` or ``Sharded``, with which results
    can be collected in order. Raises ``InvalidRequestError`` if the parts do not fit.
    """
    resolved = _resolve(strategy)
    if _is_plugin(resolved):
        result = _call_plugin(resolved, data, workers_a, workers_b)
        return _scattered_by_plugin(result, data, resolved, workers_b)
    if not callable(resolved):
        return _scatter_by_spec(data, resolved, workers_b)
    sharding: Sharding = resolved(workers_b.layout)
    spec = sharding if sharding.is_whole else spec_by_rows(data, sharding)
    return _scatter_by_spec(data, spec, workers_b)


def _resolve(strategy: Any) -> Any:
    """A strategy as a spec, a plugin, or a function of the layout: what has the name, an object of a class,
    else the strategy itself.
    """
    if isinstance(strategy, str):
        strategy = BUILT_IN.get(strategy) or installed_strategy(strategy)
    return strategy() if isinstance(strategy, type) else strategy


def _is_plugin(strategy: Any) -> bool:
    return callable(getattr(strategy, "python_dispatch_fn", None))


def _call_plugin(plugin: Any, data: Any, workers_a: Any, workers_b: Any) -> Any:
    """What a plugin returns for the data; its function for tensors is called first where they are ones."""
    torch_fn = getattr(plugin, "torch_dispatch_fn", None)
    if is_torch(data) and callable(torch_fn):
        with contextlib.suppress(NotImplementedError):
            return torch_fn(data, workers_a, workers_b)
    return plugin.python_dispatch_fn(data, workers_a, workers_b)


def _scattered_by_plugin(result: Any, data: Any, plugin: Any, workers: Any) -> Scattered:
    """The batch as a plugin distributed it; ``result`` is what it returned. Raises InvalidRequestError if
    that is not one part per rank, a ``Sharding`` or a ``Sharded``.
    """
    if isinstance(result, Sharding):
        return _scatter_by_spec(data, result, workers)
    parts = result.parts if isinstance(result, Sharded) else result
    if not isinstance(parts, (list, tuple)) or len(parts) != workers.layout.size:
        actual = f"{len(parts)} parts" if isinstance(parts, (list, tuple)) else type(parts).__name__
        raise InvalidRequestError(
            f"strategy {type(plugin).__name__} returned {actual}; allowed are a list of "
            f"{workers.layout.size}, one per rank of {workers.name}, or a Sharding or Sharded"
        )
    return Scattered(parts=tuple(parts), sharded=result if isinstance(result, Sharded) else None)


def _scatter_by_spec(data: Any, spec: Any, workers: Any) -> Scattered:
    """The batch as the spec splits it. Raises InvalidRequestError if that is for another number of ranks."""
    if (ranks := ranks_of(spec)) != workers.layout.size:
        raise InvalidRequestError(
            f"the spec is for {ranks} ranks; group {workers.name} has {workers.layout.size}"
        )
    sharded = shard(data, spec)
    return Scattered(parts=sharded.parts, sharded=sharded)


def _data_parallel(layout: ParallelLayout) -> Sharding:
    """Rows over the data-parallel axis, replicated along the others."""
    return Sharding.of(layout, dp=Shard(0, "uneven"))


def _every_rank(layout: ParallelLayout) -> Sharding:
    """Rows over all ranks."""
    placements = tuple((name, Shard(0, "uneven")) for name in reversed(layout.names))
    return Sharding(layout=layout, placements=placements)


def _replicate(layout: ParallelLayout) -> Sharding:
    """Everything to every rank."""
    return Sharding(layout=layout)


#: The built-in strategies by name; see ``scatter``.
BUILT_IN: dict[str, Callable[[ParallelLayout], Sharding]] = {
    "data_parallel": _data_parallel,
    "every_rank": _every_rank,
    "replicate": _replicate,
}


def row_sharding(strategy: Any, layout: ParallelLayout) -> Sharding:
    """The sharding of rows by a strategy that needs to know only their number: a built-in name or a Sharding.

    Raises ``InvalidRequestError`` for others.
    """
    if isinstance(strategy, str) and strategy in BUILT_IN:
        return BUILT_IN[strategy](layout)
    if not isinstance(strategy, Sharding):
        raise InvalidRequestError(
            f"strategy {strategy!r} needs the data, and results of another group stay with its workers; "
            f"allowed are {', '.join(BUILT_IN)} and a Sharding of their rows, or collect() and another call"
        )
    if strategy.layout.size != layout.size:
        raise InvalidRequestError(
            f"the sharding is for {strategy.layout.size} ranks; the group has {layout.size}"
        )
    return strategy


def installed_strategy(name: str) -> Any:
    """The strategy that an installed package registers under this name: an object or class with
    ``python_dispatch_fn``. Raises InvalidRequestError, or any error of importing its module.
    """
    for point in entry_points(group=ENTRY_POINTS, name=name):
        strategy = point.load()
        if _is_plugin(strategy):
            return strategy
        raise InvalidRequestError(f"entry point {point.value!r} has no python_dispatch_fn")
    offered = sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})
    raise InvalidRequestError(f"there is no strategy {name!r}; allowed are {', '.join(offered)}")
