"""Splits a tree by a tree of shardings, and joins the parts again.

Dicts and tuples are nodes; arrays, jagged batches and lists of rows are leaves; anything else is a leaf
that can only be replicated. The spec is a tree too, and may be less deeply nested than the data: a sharding
applies to everything below it. In a spec, the key ``"*"`` covers all keys that the spec does not name, a
list means that the list in the data is a node, not rows, and a sharding with ``tuples="rows"`` that tuples
are rows, not nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import msgspec

from schedulemesh.dispatch.holdings import Shape, first
from schedulemesh.dispatch.leaves import cut, join, shape_of
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.errors import InvalidRequestError

#: A sharding for everything, or one spec per key or list index.
Spec = Union[Sharding, Mapping[str, Any], Sequence[Any]]


def split(data: Any, spec: Spec) -> tuple[tuple[Any, ...], Any]:
    """The part of each rank, as a tree like the data, and a tree of the shapes of its leaves.

    Ranks that hold the same of every leaf share one object. An error names the path of the leaf.
    """
    ranks = ranks_of(spec)
    tree = _walk(data, spec, "")
    if isinstance(tree, _Cut):
        return tree.parts, tree.shape
    leaves = list(_leaves(tree))
    parts: dict[tuple[int, ...], Any] = {}
    leaf_ids = [tuple([id(leaf.parts[rank]) for leaf in leaves]) for rank in range(ranks)]
    for rank, ids in enumerate(leaf_ids):
        if ids not in parts:
            parts[ids] = _pick(tree, rank)
    return tuple([parts[ids] for ids in leaf_ids]), _shapes(tree)


def gather(parts: Sequence[Any], spec: Spec, shapes: Any) -> Any:
    """The batch with these parts by rank.

    ``shapes`` is a tree like the spec, whose leaves are shapes of the whole; they may end after the last dim
    that is split. Of replicas, the part of the lowest rank is used.
    """
    ranks = ranks_of(spec)
    if len(parts) != ranks:
        raise InvalidRequestError(f"{len(parts)} parts were given; the layout has {ranks} ranks")
    return _join(list(parts), spec, shapes, "")


def ranks_of(spec: Spec) -> int:
    """The number of ranks of the layouts in a spec, which must agree."""
    sizes = sorted({sharding.layout.size for sharding in shardings_of(spec)})
    if len(sizes) != 1:
        raise InvalidRequestError(
            f"the layouts of the spec have {sizes} ranks; allowed is one number"
        )
    return sizes[0]


def sharded_leaves(spec: Any, shapes: Any, path: str = "") -> Iterator[tuple[str, Sharding, Shape]]:
    """Path, sharding and shape of each leaf that was split by the spec and has these shapes."""
    if isinstance(spec, Sharding) and is_shape(shapes):
        yield path, spec, shapes
        return
    for key in shapes if isinstance(shapes, Mapping) else range(len(shapes)):
        yield from sharded_leaves(below(spec, key, path), shapes[key], step(path, key))


def leaf_at(spec: Any, shapes: Any, keys: Sequence[Any]) -> tuple[Sharding, Shape] | None:
    """Sharding and shape of the leaf at a position; None if there is a node, or nothing."""
    for key in keys:
        if is_shape(shapes):
            return None
        position = int(key) if isinstance(shapes, list) and str(key).isdecimal() else key
        inside = range(len(shapes)) if isinstance(shapes, list) else shapes
        if position not in inside:
            return None
        spec, shapes = below(spec, key, ""), shapes[position]
    return (spec, shapes) if isinstance(spec, Sharding) and is_shape(shapes) else None


class _Cut(msgspec.Struct, frozen=True, eq=False):
    parts: tuple[Any, ...]
    shape: Shape


def shardings_of(spec: Any) -> list[Sharding]:
    """All shardings of a spec."""
    if isinstance(spec, Sharding):
        return [spec]
    if not isinstance(spec, (Mapping, list, tuple)):
        raise InvalidRequestError(
            f"spec {spec!r} is no Sharding; allowed are those, dicts and lists of them"
        )
    inner = spec.values() if isinstance(spec, Mapping) else spec
    return [sharding for each in inner for sharding in shardings_of(each)]


def _walk(data: Any, spec: Any, path: str) -> Any:
    """A tree like the data with a ``_Cut`` for each leaf."""
    if isinstance(data, Mapping):
        return {
            key: _walk(value, below(spec, key, path), step(path, key))
            for key, value in data.items()
        }
    if isinstance(spec, Sharding) and not is_node(data, spec):
        return _Cut(at_path(path, cut, data, spec), shape_of(data))
    if not isinstance(data, (list, tuple)) or _differs(data, spec):
        raise InvalidRequestError(
            f"at {path or 'the top'} the spec has {kind(spec)}, the data {kind(data)}; they must be alike, "
            f"or the spec a Sharding for all below"
        )
    members = [_walk(value, below(spec, at, path), step(path, at)) for at, value in enumerate(data)]
    return rebuilt(data, members)


def is_node(value: Any, spec: Sharding) -> bool:
    """Whether a value below a sharding is a tree whose members are split one by one."""
    return isinstance(value, Mapping) or (isinstance(value, tuple) and spec.tuples == "tree")


def _differs(data: Sequence[Any], spec: Any) -> bool:
    """Whether the spec has entries by position, but not one for each member of the data."""
    return isinstance(spec, (list, tuple)) and len(spec) != len(data)


def rebuilt(like: Any, members: Sequence[Any]) -> Any:
    """A list, tuple or named tuple like the given one, with other members."""
    make = getattr(like, "_make", type(like))
    return make(members)


def below(spec: Any, key: Any, path: str) -> Any:
    """The spec of ``key``, a dict key or list index, at ``path``. An error names both."""
    if isinstance(spec, Sharding):
        return spec
    if isinstance(spec, Mapping) and (key in spec or "*" in spec):
        return spec[key] if key in spec else spec["*"]
    if isinstance(spec, (list, tuple)) and str(key).isdecimal() and int(key) < len(spec):
        return spec[int(key)]
    raise InvalidRequestError(
        f"at {path or 'the top'} the spec has no entry for {key!r}: it has {kind(spec)}; add the key, or '*'"
    )


def _pick(node: Any, rank: int) -> Any:
    if isinstance(node, _Cut):
        return node.parts[rank]
    if isinstance(node, dict):
        return {key: _pick(value, rank) for key, value in node.items()}
    return rebuilt(node, [_pick(value, rank) for value in node])


def _leaves(node: Any) -> Iterator[_Cut]:
    if isinstance(node, _Cut):
        yield node
        return
    for value in node.values() if isinstance(node, dict) else node:
        yield from _leaves(value)


def _shapes(node: Any) -> Any:
    """The shapes of the leaves; sequences are lists, because a tuple is the shape of a leaf."""
    if isinstance(node, _Cut):
        return node.shape
    if isinstance(node, dict):
        return {key: _shapes(value) for key, value in node.items()}
    return [_shapes(value) for value in node]


def _join(nodes: list[Any], spec: Any, shapes: Any, path: str) -> Any:
    is_sharding = isinstance(spec, Sharding)
    sample = (
        first(nodes, spec)
        if is_sharding
        else next((node for node in nodes if node is not None), None)
    )
    if isinstance(sample, Mapping):
        # Ranks may leave out what they do not hold, so that no rank need have all of the keys.
        keys = dict.fromkeys(key for node in nodes if isinstance(node, Mapping) for key in node)
        return {key: _join_below(nodes, spec, shapes, key, path) for key in keys}
    if is_sharding and not is_node(sample, spec):
        return at_path(path, join, nodes, spec, shapes)
    if not isinstance(sample, (list, tuple)):
        raise InvalidRequestError(
            f"at {path or 'the top'} the spec has {kind(spec)}, the parts {kind(sample)}; they must agree"
        )
    alike = [node for node in nodes if isinstance(node, (list, tuple))]
    longest = max(sample, *alike, key=len)
    members = [_join_below(nodes, spec, shapes, at, path) for at in range(len(longest))]
    return rebuilt(longest, members)


def _join_below(nodes: list[Any], spec: Any, shapes: Any, key: Any, path: str) -> Any:
    return _join(
        [child(node, key) for node in nodes],
        below(spec, key, path),
        shapes if is_shape(shapes) else shape_below(shapes, key, path),
        step(path, key),
    )


def child(node: Any, key: Any) -> Any:
    """The member ``key`` of a node; None if it has none."""
    if isinstance(node, Mapping):
        return node.get(key)
    try:
        return node[key] if isinstance(node, (list, tuple)) else None
    except (IndexError, TypeError):
        return None


def is_shape(shapes: Any) -> bool:
    """Whether this is the shape of a leaf, not a node of shapes."""
    return isinstance(shapes, tuple) and (not shapes or isinstance(shapes[0], int))


def shape_below(shapes: Any, key: Any, path: str) -> Any:
    """The shapes of ``key``, a dict key or list index, at ``path``. An error names both."""
    try:
        return shapes[key if isinstance(shapes, Mapping) else int(key)]
    except (LookupError, ValueError) as error:
        raise InvalidRequestError(
            f"at {path or 'the top'} there is no shape of {key!r}: there are {kind(shapes)}"
        ) from error


def at_path(path: str, act: Callable[..., Any], *args: Any) -> Any:
    """What ``act`` returns for what is given. An error of it is raised with the path; empty: the top."""
    try:
        return act(*args)
    except InvalidRequestError as error:
        if not path:
            raise
        raise InvalidRequestError(f"{path}: {error}") from error


def step(path: str, key: object) -> str:
    """The path of the member ``key`` of the node at ``path``."""
    return f"{path}/{key}" if path else str(key)


def kind(value: Any) -> str:
    """What lies at a place of a tree, for messages."""
    if isinstance(value, Mapping):
        return f"the keys {list(value)}"
    return f"{len(value)} places" if isinstance(value, (list, tuple)) else type(value).__name__
