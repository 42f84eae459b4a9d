"""Joins the results of ranks: rows in the order of the batch, and beside them metrics and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce as reduce_by
from typing import Any, Literal, Union, get_args

import msgspec

from schedulemesh.dispatch.arrays import combined, equal, is_array
from schedulemesh.dispatch.holdings import Shape, grid
from schedulemesh.dispatch.leaves import has_rows, shape_of
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.dispatch.trees import (
    child,
    gather,
    is_node,
    is_shape,
    kind,
    leaf_at,
    ranks_of,
    rebuilt,
    sharded_leaves,
)
from schedulemesh.errors import InvalidRequestError

#: How the values of several ranks become one; see ``collect``.
Reduction = Literal["mean", "sum", "min", "max", "per_rank", "rank_zero"]
#: One for everything, or by path; None: nothing is reduced.
Reductions = Union[Reduction, Mapping[str, Reduction], None]
#: The position of a result: dict keys and indexes from the top.
Keys = tuple[Any, ...]


class _Batch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The batch that was distributed, and how its results are joined."""

    parts: Sequence[Any]
    spec: Any
    shapes: Any
    #: The split that results follow; None: the leaves of the batch are not split alike.
    pattern: tuple[Sharding, Shape] | None
    #: Whether the caller has named the leaf whose split that is.
    named: bool
    #: Of ranks that were given the same, the lowest.
    holders: tuple[int, ...]
    reduce: Mapping[str, Reduction]

    def reduction(self, keys: Keys) -> Reduction | None:
        """The reduction declared for this position, or for one above it."""
        above = ("/".join(map(str, keys[:depth])) for depth in range(len(keys), -1, -1))
        return next((self.reduce[path] for path in above if path in self.reduce), None)


def collect(
    outputs: Sequence[Any],
    parts: Sequence[Any],
    spec: Any,
    shapes: Any,
    *,
    like: str | None = None,
    reduce: Reductions = None,
) -> Any:
    """The results of the ranks as one batch, in the order of the batch that was distributed.

    ``outputs`` are the results by rank: values, or trees of them. ``parts``, ``spec`` and ``shapes`` are
    what ``trees.split`` was given and returned. Of replicas, the result of the lowest rank is used; results
    of ranks that hold nothing are ignored.

    Rows (arrays, lists, jagged batches) that have the path and the local shapes of a leaf of the batch are
    joined as that leaf; others as the leaf at path ``like``, such as ``"prompts/ids"`` (empty: the batch
    itself is the leaf; None: the leaves that an axis splits, which must all be split alike). A value without
    rows, such as a scalar, must be the same on all ranks, or ``reduce`` says for its path, for one above it,
    or for ``"*"`` (all that are not named), how one value is made of several: "mean", "sum", "min" and "max"
    of the ranks that were given different parts and returned something, "per_rank" for a list by rank,
    "rank_zero" for the value of rank 0. Reductions that are named, not by ``"*"``, also apply to rows.

    Raises ``InvalidRequestError`` with the path for results that cannot be joined.
    """
    if len(outputs) != (ranks := ranks_of(spec)):
        raise InvalidRequestError(
            f"{len(outputs)} results were given; the layout has {ranks} ranks"
        )
    pattern = common_split(spec, shapes) if like is None else leaf_at(spec, shapes, _keys(like))
    if like is not None and pattern is None:
        raise InvalidRequestError(
            f"like={like!r} is no leaf of the batch: it has {kind(_shape_at(shapes, like))}"
        )
    batch = _Batch(
        parts=parts,
        spec=spec,
        shapes=shapes,
        pattern=pattern,
        named=like is not None,
        holders=_holders(pattern, parts),
        reduce=reductions(reduce),
    )
    return _collected(list(outputs), (), batch)


def reduced(outputs: Sequence[Any], reduce: Reductions) -> Any:
    """The results of ranks that were all called alike, each value combined as ``reduce`` says.

    As in ``collect``, but every rank counts, and a value without a reduction must be the same on all ranks.
    """
    batch = _Batch(
        parts=(),
        spec=None,
        shapes=None,
        pattern=None,
        named=False,
        holders=tuple(range(len(outputs))),
        reduce=reductions(reduce),
    )
    return _collected(list(outputs), (), batch)


def reductions(reduce: Reductions) -> Mapping[str, Reduction]:
    """Reductions by path. Raises ``InvalidRequestError`` for unknown ones."""
    given = {"": reduce} if isinstance(reduce, str) else dict(reduce or {})
    wrong = {path: how for path, how in given.items() if how not in get_args(Reduction)}
    if wrong:
        raise InvalidRequestError(
            f"reduce={wrong}; allowed are {', '.join(get_args(Reduction))}, for everything or by path"
        )
    return given


def below(reduce: Reductions, key: Any) -> Reductions:
    """The reductions of what lies under ``key`` of each result."""
    if reduce is None or isinstance(reduce, str):
        return reduce
    own = str(key)
    inner = {
        path.removeprefix(own).removeprefix("/"): how
        for path, how in reduce.items()
        if path == own or path.startswith(f"{own}/")
    }
    everywhere = {path: how for path, how in reduce.items() if path in ("", "*")}
    return {**everywhere, **inner} or None


def _collected(nodes: list[Any], keys: Keys, batch: _Batch) -> Any:
    how = batch.reduction(keys)
    if how == "per_rank":
        return nodes
    if how == "rank_zero":
        return nodes[0]
    given = [nodes[rank] for rank in batch.holders if nodes[rank] is not None]
    sample = given[0] if given else next((node for node in nodes if node is not None), None)
    if isinstance(sample, Mapping):
        return {key: _below(nodes, keys, key, batch) for key in sample}
    if isinstance(sample, tuple) and (batch.pattern is None or is_node(sample, batch.pattern[0])):
        return rebuilt(sample, [_below(nodes, keys, at, batch) for at in range(len(sample))])
    if how is None and has_rows(sample):
        return _joined(nodes, keys, batch)
    return _one(given, how or batch.reduce.get("*"), keys)


def _below(nodes: list[Any], keys: Keys, key: Any, batch: _Batch) -> Any:
    return _collected([child(node, key) for node in nodes], (*keys, key), batch)


def _joined(nodes: list[Any], keys: Keys, batch: _Batch) -> Any:
    """Rows in the order of the batch."""
    own = None if batch.named or batch.spec is None else _returned(nodes, keys, batch)
    if own is not None and own[0].whole and not _nothing_is_split(batch):
        return _one([node for node in nodes if node is not None], None, keys)
    found = own or batch.pattern
    if found is not None:
        return gather(nodes, *found)
    raise InvalidRequestError(
        f"{_where(keys)} has rows, and the leaves {_split_leaves(batch)} are not split alike; name with "
        f"like= the one whose split the results follow"
        if batch.spec is not None
        else f"{_where(keys)} has rows, and every rank was called alike, so that they have no order; "
        f"name a reduction, such as reduce={{{_where(keys)!r}: 'per_rank'}}"
    )


def _returned(nodes: list[Any], keys: Keys, batch: _Batch) -> tuple[Sharding, Shape] | None:
    """The leaf of the batch at this path, if the ranks returned what has the shapes of its parts."""
    leaf = leaf_at(batch.spec, batch.shapes, keys)
    if leaf is None:
        return None
    for node, tree in zip(nodes, batch.parts, strict=True):
        part = reduce_by(child, keys, tree)
        if part is not None and (not has_rows(node) or shape_of(node) != shape_of(part)):
            return None
    return leaf


def _nothing_is_split(batch: _Batch) -> bool:
    return batch.pattern is not None and batch.pattern[0].whole


def _one(given: list[Any], how: Reduction | None, keys: Keys) -> Any:
    """One value of those that the ranks returned."""
    if how == "per_rank" or how == "rank_zero":
        return given if how == "per_rank" else given[0]
    if how is not None:
        return _combined(given, how, keys)
    if all(equal(value, given[0]) for value in given[1:]):
        return given[0] if given else None
    raise InvalidRequestError(
        f"{_where(keys)} is not the same on all ranks: {_shown(given[0])} and others; say how they make one "
        f"value with reduce={{{'/'.join(map(str, keys)) or '*'!r}: …}}: allowed are "
        f"{', '.join(get_args(Reduction))}"
    )


def _combined(given: list[Any], how: str, keys: Keys) -> Any:
    if not given:
        raise InvalidRequestError(f"{_where(keys)}: no rank returned a value for its {how}")
    try:
        return combined(given, how)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequestError(
            f"{_where(keys)}: {_shown(given[0])} and others have no {how}: {error}; allowed are numbers, "
            f"arrays and tensors of one shape"
        ) from error


def common_split(spec: Any, shapes: Any) -> tuple[Sharding, Shape] | None:
    """The sharding and shape that all leaves which are split have in common; None: they have none."""
    leaves = list(sharded_leaves(spec, shapes))
    split = [leaf for leaf in leaves if not leaf[1].whole] or leaves[:1]
    alike = {(sharding, _split_sizes(sharding, shape)) for _, sharding, shape in split}
    return (split[0][1], split[0][2]) if len(alike) == 1 else None


def _split_sizes(sharding: Sharding, shape: Shape) -> tuple[Any, ...]:
    """The sizes of the dims that are split, by dim."""
    return tuple((dim, size) for dim, size in enumerate(shape) if sharding.cuts(dim, len(shape)))


def _split_leaves(batch: _Batch) -> list[str]:
    leaves = sharded_leaves(batch.spec, batch.shapes)
    return [path for path, sharding, _ in leaves if not sharding.whole]


def _holders(pattern: tuple[Sharding, Shape] | None, parts: Sequence[Any]) -> tuple[int, ...]:
    """The lowest of each set of ranks that were given the same."""
    if pattern is not None:
        owners = grid(pattern[0], len(pattern[1])).owners
        return tuple(sorted(ranks[0] for ranks in owners.values()))
    lowest: dict[int, int] = {}
    for rank, part in enumerate(parts):
        if part is not None:
            lowest.setdefault(id(part), rank)
    return tuple(lowest.values())


def _keys(path: str) -> Keys:
    return tuple(filter(None, path.split("/")))


def _shape_at(shapes: Any, path: str) -> Any:
    for key in _keys(path):
        if is_shape(shapes):
            break
        shapes = child(shapes, key)
    return shapes


def _where(keys: Keys) -> str:
    return "/".join(map(str, keys)) or "the result"


def _shown(value: Any) -> str:
    if is_array(value) and shape_of(value):
        return f"an array of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
