"""Joins the results of ranks: rows in the order of the batch, and beside them metrics and metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce as reduce_by
from typing import Any, Literal, Union, get_args

import msgspec

from schedulemesh.dispatch.arrays import combined, equal, is_array
from schedulemesh.dispatch.holdings import Shape, grid
from schedulemesh.dispatch.leaves import has_rows, shape_of
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.dispatch.trees import (
    at_path,
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
#: In place of a value that a rank has left out; None is a value: the rank returned nothing.
_LEFT_OUT: Any = object()


class _Batch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The batch that was distributed, and how its results are joined."""

    parts: Sequence[Any]
    spec: Any
    shapes: Any
    #: The split that results follow; None: the leaves of the batch are not split alike.
    pattern: tuple[Sharding, Shape] | None
    #: Whether the caller has named the leaf whose split that is.
    named: bool
    #: For each part the ranks that were given it, ascending; ranks that were given nothing are in none.
    holders: tuple[tuple[int, ...], ...]
    reduce: Mapping[str, Reduction]

    def reduction(self, keys: Keys) -> Reduction | None:
        """The reduction declared for this position, or for one above it."""
        above = ("/".join(map(str, keys[:depth])) for depth in range(len(keys), -1, -1))
        return next((self.reduce[path] for path in above if path in self.reduce), None)

    def reduces(self, keys: Keys) -> bool:
        """Whether a reduction is named for this position, one above or one below it."""
        inside = "/".join(map(str, keys)) + "/"
        return self.reduction(keys) is not None or any(
            path.startswith(inside) for path in self.reduce
        )

    def returned(self, nodes: Sequence[Any]) -> dict[int, Any]:
        """By the lowest rank of each part, what the lowest rank that returned anything returned for it."""
        by_part = {}
        for ranks in self.holders:
            for rank in ranks:
                if nodes[rank] is not None and nodes[rank] is not _LEFT_OUT:
                    by_part[ranks[0]] = nodes[rank]
                    break
        return by_part


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
    what ``trees.split`` was given and returned. Of replicas, the result of the lowest rank that returned
    something (not None) is used; results of ranks that hold nothing are ignored.

    Rows (arrays, lists, jagged batches) that have the path and the local shapes of a leaf of the batch are
    joined as that leaf; others as the leaf at path ``like``, such as ``"prompts/ids"`` (empty: the batch
    itself is the leaf; None: the leaves that an axis splits, which must all be split alike). A value without
    rows, such as a scalar, must be the same on all ranks, or ``reduce`` says for its path, for one above it,
    or for ``"*"`` (all that are not named), how one value is made of several: "mean", "sum", "min" and "max"
    of the ranks that were given different parts and returned something, "per_rank" for a list by rank,
    "rank_zero" for the value of rank 0. Reductions that are named, not by ``"*"``, also apply to rows. The
    result has all keys that were returned; one that some ranks leave out needs a reduction.

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
        holders=tuple((rank,) for rank in range(len(outputs))),
        reduce=reductions(reduce),
    )
    return _collected(list(outputs), (), batch)


def reductions(reduce: Reductions) -> Mapping[str, Reduction]:
    """Reductions by path. Raises ``InvalidRequestError`` for unknown ones."""
    by_path = {"": reduce} if isinstance(reduce, str) else dict(reduce or {})
    wrong = {path: how for path, how in by_path.items() if how not in get_args(Reduction)}
    if wrong:
        raise InvalidRequestError(
            f"reduce={wrong}; allowed are {', '.join(get_args(Reduction))}, for everything or by path"
        )
    return by_path


def below(reduce: Reductions, key: Any) -> Reductions:
    """The reductions of what lies under ``key`` of each result."""
    if reduce is None or isinstance(reduce, str):
        return reduce
    name = str(key)
    inner = {
        path.removeprefix(name).removeprefix("/"): how
        for path, how in reduce.items()
        if path == name or path.startswith(f"{name}/")
    }
    everywhere = {path: how for path, how in reduce.items() if path in ("", "*")}
    return {**everywhere, **inner} or None


def _collected(nodes: list[Any], keys: Keys, batch: _Batch) -> Any:
    how = batch.reduction(keys)
    if how == "per_rank" or how == "rank_zero":
        return _by_rank(nodes, how)
    returned = batch.returned(nodes)
    sample = next(iter(returned.values()), None)
    if sample is None:
        sample = next((node for node in nodes if node is not None and node is not _LEFT_OUT), None)
    if isinstance(sample, Mapping):
        _check_alike(returned, keys, Mapping)
        return {key: _below(nodes, keys, key, batch) for key in _keys_of(nodes, keys, batch)}
    if isinstance(sample, tuple) and (batch.pattern is None or is_node(sample, batch.pattern[0])):
        _check_alike(returned, keys, tuple)
        longest = max(sample, *_counted(nodes, batch, tuple), key=len)
        return rebuilt(longest, [_below(nodes, keys, at, batch) for at in range(len(longest))])
    rows = how is None and has_rows(sample)
    how = how or (None if rows else batch.reduce.get("*"))
    if how is None:
        _check_all_returned(nodes, returned, keys, batch)
    return (
        _joined(nodes, returned, keys, batch) if rows else _one(nodes, returned, how, keys, batch)
    )


def _below(nodes: list[Any], keys: Keys, key: Any, batch: _Batch) -> Any:
    return _collected([_member(node, key) for node in nodes], (*keys, key), batch)


def _member(node: Any, key: Any) -> Any:
    """The member of a rank's result; it is left out if the others have one there."""
    if isinstance(node, Mapping):
        return node.get(key, _LEFT_OUT)
    if isinstance(node, tuple) and isinstance(key, int):
        return node[key] if key < len(node) else _LEFT_OUT
    return node if node is _LEFT_OUT else None


def _keys_of(nodes: Sequence[Any], keys: Keys, batch: _Batch) -> list[Any]:
    """The keys of the results in the order in which the ranks first have them.

    Of ranks that hold nothing, the keys for which a reduction is named.
    """
    counted = {rank for ranks in batch.holders for rank in ranks}
    return list(
        dict.fromkeys(
            key
            for rank, node in enumerate(nodes)
            if isinstance(node, Mapping)
            for key in node
            if rank in counted or batch.reduces((*keys, key))
        )
    )


def _counted(nodes: Sequence[Any], batch: _Batch, kind_of_node: type) -> list[Any]:
    """The nodes of the ranks that hold anything, of this type."""
    ranks = sorted(rank for ranks in batch.holders for rank in ranks)
    return [nodes[rank] for rank in ranks if isinstance(nodes[rank], kind_of_node)]


def _check_alike(returned: Mapping[int, Any], keys: Keys, node: type) -> None:
    """Raise ``InvalidRequestError`` if some ranks returned no such node where others did."""
    other = {rank: value for rank, value in returned.items() if not isinstance(value, node)}
    for rank, value in other.items():
        shown = next(each for each in returned.items() if each[0] not in other)
        raise InvalidRequestError(
            f"{_where(keys)}: rank {rank} returned {kind(value)}, rank {shown[0]} {kind(shown[1])}; allowed "
            f"are results of one structure"
        )


def _check_all_returned(
    nodes: Sequence[Any], returned: Mapping[int, Any], keys: Keys, batch: _Batch
) -> None:
    """Raise ``InvalidRequestError`` if a value was left out by the ranks of some parts only."""
    lacking = [
        rank
        for ranks in batch.holders
        if ranks[0] not in returned
        for rank in ranks
        if nodes[rank] is _LEFT_OUT
    ]
    if returned and lacking:
        raise InvalidRequestError(
            f"{_where(keys)} was left out by rank {_ranks(lacking)} and returned for the part of rank "
            f"{_ranks(returned)}; return it on all ranks that have a part, or {_named(keys)}"
        )


def _by_rank(nodes: Sequence[Any], how: str) -> Any:
    values = [None if node is _LEFT_OUT else node for node in nodes]
    return values if how == "per_rank" else values[0]


def _joined(nodes: list[Any], returned: Mapping[int, Any], keys: Keys, batch: _Batch) -> Any:
    """Rows in the order of the batch."""
    own_split = None if batch.named or batch.spec is None else _returned(nodes, keys, batch)
    if own_split is not None and own_split[0].is_whole and not _nothing_is_split(batch):
        everywhere = {rank: node for rank, node in enumerate(nodes) if node is not None}
        return _one(nodes, everywhere, None, keys, batch)
    row_split = own_split or batch.pattern
    if row_split is not None:
        rows = [returned.get(rank, node) for rank, node in enumerate(_by_rank(nodes, "per_rank"))]
        return at_path("/".join(map(str, keys)), gather, rows, *row_split)
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
    return batch.pattern is not None and batch.pattern[0].is_whole


def _one(
    nodes: Sequence[Any],
    returned: Mapping[int, Any],
    how: Reduction | None,
    keys: Keys,
    batch: _Batch,
) -> Any:
    """One value of those that the ranks returned."""
    if how == "per_rank" or how == "rank_zero":
        return _by_rank(nodes, how)
    if how is not None and not returned:
        counted = sorted(rank for ranks in batch.holders for rank in ranks)
        raise InvalidRequestError(
            f"{_where(keys)}: of the ranks that have a part ({_ranks(counted)}) none returned a value for "
            f"its {how}; return one there, or use 'per_rank' or 'rank_zero', for which all ranks count"
        )
    values = list(returned.values())
    if how is not None:
        return _combined(values, how, keys)
    if all(equal(value, values[0]) for value in values[1:]):
        return values[0] if values else None
    raise InvalidRequestError(
        f"{_where(keys)} is not the same on all ranks: {_shown(values[0])} and others; {_named(keys)}"
    )


def _named(keys: Keys) -> str:
    """How to name a reduction for this position."""
    return (
        f"say how they make one value with reduce={{{'/'.join(map(str, keys)) or '*'!r}: …}}: allowed are "
        f"{', '.join(get_args(Reduction))}"
    )


def _ranks(ranks: Iterable[int]) -> str:
    """The first of these ranks as text."""
    shown = list(ranks)
    return ", ".join(map(str, shown[:8])) + (", …" if len(shown) > 8 else "")


def _combined(values: list[Any], how: str, keys: Keys) -> Any:
    try:
        return combined(values, how)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequestError(
            f"{_where(keys)}: {_shown(values[0])} and others have no {how}: {error}; allowed are numbers, "
            f"arrays and tensors of one shape"
        ) from error


def common_split(spec: Any, shapes: Any) -> tuple[Sharding, Shape] | None:
    """The sharding and shape that all leaves which are split have in common; None: they have none."""
    leaves = list(sharded_leaves(spec, shapes))
    split = [leaf for leaf in leaves if not leaf[1].is_whole] or leaves[:1]
    alike = {(sharding, _split_sizes(sharding, shape)) for _, sharding, shape in split}
    return (split[0][1], split[0][2]) if len(alike) == 1 else None


def _split_sizes(sharding: Sharding, shape: Shape) -> tuple[Any, ...]:
    """The sizes of the dims that are split, by dim."""
    return tuple((dim, size) for dim, size in enumerate(shape) if sharding.cuts(dim, len(shape)))


def _split_leaves(batch: _Batch) -> list[str]:
    leaves = sharded_leaves(batch.spec, batch.shapes)
    return [path for path, sharding, _ in leaves if not sharding.is_whole]


def _holders(
    pattern: tuple[Sharding, Shape] | None, parts: Sequence[Any]
) -> tuple[tuple[int, ...], ...]:
    """The sets of ranks that were given the same, by the lowest."""
    if pattern is not None:
        return tuple(sorted(grid(pattern[0], len(pattern[1])).owners.values()))
    alike: dict[int, list[int]] = {}
    for rank, part in enumerate(parts):
        if part is not None:
            alike.setdefault(id(part), []).append(rank)
    return tuple(map(tuple, alike.values()))


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
