"""Distributes a batch to the ranks of a layout and collects the results.

A batch is a tree: dicts are nodes; arrays, jagged batches and lists of rows are leaves; anything else is
a leaf that can only be replicated. The spec is a tree too, and may be less deeply nested than the data: a
sharding applies to everything below it. In a spec, the key ``"*"`` covers all keys that the spec does not
name, and a list means that the list in the data is a node, not rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import msgspec

from schedulemesh.dispatch.holdings import Shape, first
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.leaves import cut, join, shape_of
from schedulemesh.dispatch.placement import Shard, Sharding, Uneven
from schedulemesh.errors import InvalidRequestError

#: A sharding for everything, or one spec per key or list index.
Spec = Union[Sharding, Mapping[str, Any], Sequence[Any]]


class Sharded(msgspec.Struct, frozen=True, eq=False):
    """A batch that has been distributed, and the information needed to join it again."""

    #: What each rank holds, as a tree like the batch; None if a rank holds nothing of a leaf. Ranks that
    #: hold the same of every leaf share one object, which needs to be sent only once.
    parts: tuple[Any, ...]
    spec: Any
    #: A tree like the batch with the shape of each leaf.
    shapes: Any

    def gather(self) -> Any:
        """The batch again: equal to the original, without the elements that ``drop_last`` dropped.

        Leaves that no axis splits are returned unchanged; others are new arrays.
        """
        return gather(self.parts, self.spec, self.shapes)

    def collect(self, outputs: Sequence[Any], *, like: str = "") -> Any:
        """The results of the ranks as one batch, in the order of the batch that was distributed.

        ``outputs`` are the results by rank: arrays, lists of rows or trees of them, split as the leaf at path
        ``like`` was, such as ``"prompts/ids"`` (empty: the batch itself is the leaf). Of replicas, the result
        of the lowest rank is used; results of ranks that hold nothing of ``like`` are ignored.
        """
        spec, shape = self.spec, self.shapes
        for key in filter(None, like.split("/")):
            spec, shape = below(spec, key, like), _step(shape, key, like)
        if not isinstance(spec, Sharding) or not _is_shape(shape):
            raise InvalidRequestError(
                f"like={like!r} is no leaf of the batch: it has {_kind(shape)}"
            )
        return gather(outputs, spec, shape)


def shard(data: Any, spec: Spec) -> Sharded:
    """Distributes the batch to the ranks of the spec's layout.

    Parts of arrays are views of ``data`` if they are one run per dim without padding. An error names the
    path of the leaf.
    """
    ranks = ranks_of(spec)
    tree = _walk(data, spec, "")
    leaves = list(_leaves(tree))
    parts: dict[tuple[int, ...], Any] = {}
    held = [tuple([id(leaf.parts[rank]) for leaf in leaves]) for rank in range(ranks)]
    for rank, own in enumerate(held):
        if own not in parts:
            parts[own] = _pick(tree, rank)
    return Sharded(tuple([parts[own] for own in held]), spec, _shapes(tree))


def gather(parts: Sequence[Any], spec: Spec, shapes: Any) -> Any:
    """The batch with these parts by rank.

    ``shapes`` is a tree like the spec, whose leaves are shapes of the whole; they may end after the last dim
    that is split. Of replicas, the part of the lowest rank is used.
    """
    ranks = ranks_of(spec)
    if len(parts) != ranks:
        raise InvalidRequestError(f"{len(parts)} parts were given; the layout has {ranks} ranks")
    return _join(list(parts), spec, shapes, "")


def microbatches(
    data: Any, count: int, *, dim: int = 0, uneven: Uneven = "error", whole: Sequence[str] = ()
) -> Sharded:
    """The batch in ``count`` microbatches along ``dim``: ``parts`` in order; ``gather`` joins them.

    ``whole`` names the top-level keys that every microbatch gets as a whole. Microbatches are views.
    """
    layout = ParallelLayout.of("microbatch", microbatch=count)
    parted = Sharding.of(layout, microbatch=Shard(dim, uneven))
    if not whole:
        return shard(data, parted)
    return shard(data, {**{key: Sharding(layout=layout) for key in whole}, "*": parted})


def ranks_of(spec: Spec) -> int:
    """The number of ranks of the layouts in a spec, which must agree."""
    sizes = sorted({sharding.layout.size for sharding in _shardings(spec)})
    if len(sizes) != 1:
        raise InvalidRequestError(
            f"the layouts of the spec have {sizes} ranks; allowed is one number"
        )
    return sizes[0]


class _Cut(msgspec.Struct, frozen=True, eq=False):
    parts: tuple[Any, ...]
    shape: Shape


def _shardings(spec: Any) -> list[Sharding]:
    if isinstance(spec, Sharding):
        return [spec]
    if not isinstance(spec, (Mapping, list, tuple)):
        raise InvalidRequestError(
            f"spec {spec!r} is no Sharding; allowed are those, dicts and lists of them"
        )
    inner = spec.values() if isinstance(spec, Mapping) else spec
    return [found for each in inner for found in _shardings(each)]


def _walk(data: Any, spec: Any, path: str) -> Any:
    """A tree like the data with a ``_Cut`` for each leaf."""
    if isinstance(data, Mapping):
        return {
            key: _walk(value, below(spec, key, path), _path(path, key))
            for key, value in data.items()
        }
    if isinstance(spec, Sharding):
        return _Cut(_at(path, cut, data, spec), shape_of(data))
    if (
        not isinstance(data, (list, tuple))
        or not isinstance(spec, (list, tuple))
        or len(data) != len(spec)
    ):
        raise InvalidRequestError(
            f"at {path or 'the top'} the spec has {_kind(spec)}, the data {_kind(data)}; they must be alike, "
            f"or the spec a Sharding for all below"
        )
    pairs = zip(data, spec, strict=True)
    return type(data)(_walk(value, each, _path(path, at)) for at, (value, each) in enumerate(pairs))


def below(spec: Any, key: Any, path: str) -> Any:
    """The spec of ``key``, a dict key or list index, at ``path``. An error names both."""
    if isinstance(spec, Sharding):
        return spec
    if isinstance(spec, Mapping) and (key in spec or "*" in spec):
        return spec[key] if key in spec else spec["*"]
    if isinstance(spec, (list, tuple)) and str(key).isdecimal() and int(key) < len(spec):
        return spec[int(key)]
    raise InvalidRequestError(
        f"at {path or 'the top'} the spec has no entry for {key!r}: it has {_kind(spec)}; add the key, or '*'"
    )


def _pick(node: Any, rank: int) -> Any:
    if isinstance(node, _Cut):
        return node.parts[rank]
    if isinstance(node, dict):
        return {key: _pick(value, rank) for key, value in node.items()}
    return type(node)(_pick(value, rank) for value in node)


def _leaves(node: Any) -> Iterator[_Cut]:
    if isinstance(node, _Cut):
        yield node
        return
    for value in node.values() if isinstance(node, dict) else node:
        yield from _leaves(value)


def _shapes(node: Any) -> Any:
    if isinstance(node, _Cut):
        return node.shape
    if isinstance(node, dict):
        return {key: _shapes(value) for key, value in node.items()}
    return type(node)(_shapes(value) for value in node)


def _join(nodes: list[Any], spec: Any, shapes: Any, path: str) -> Any:
    held = isinstance(spec, Sharding)
    sample = (
        first(nodes, spec) if held else next((node for node in nodes if node is not None), None)
    )
    if isinstance(sample, Mapping):
        return {key: _join_below(nodes, spec, shapes, key, path) for key in sample}
    if held:
        return _at(path, join, nodes, spec, shapes)
    if not isinstance(sample, (list, tuple)):
        raise InvalidRequestError(
            f"at {path or 'the top'} the spec has {_kind(spec)}, the parts {_kind(sample)}; they must agree"
        )
    return type(sample)(_join_below(nodes, spec, shapes, at, path) for at in range(len(sample)))


def _join_below(nodes: list[Any], spec: Any, shapes: Any, key: Any, path: str) -> Any:
    return _join(
        [_child(node, key) for node in nodes],
        below(spec, key, path),
        shapes if _is_shape(shapes) else _step(shapes, key, path),
        _path(path, key),
    )


def _child(node: Any, key: Any) -> Any:
    if isinstance(node, Mapping):
        return node.get(key)
    return node[key] if isinstance(node, (list, tuple)) else None


def _is_shape(shapes: Any) -> bool:
    """Whether this is the shape of a leaf, not a node of shapes."""
    return isinstance(shapes, tuple) and (not shapes or isinstance(shapes[0], int))


def _step(shapes: Any, key: Any, path: str) -> Any:
    try:
        return shapes[key if isinstance(shapes, Mapping) else int(key)]
    except (LookupError, ValueError) as error:
        raise InvalidRequestError(
            f"at {path or 'the top'} there is no shape of {key!r}: there are {_kind(shapes)}"
        ) from error


def _at(path: str, act: Callable[..., Any], *given: Any) -> Any:
    try:
        return act(*given)
    except InvalidRequestError as error:
        if not path:
            raise
        raise InvalidRequestError(f"{path}: {error}") from error


def _path(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"the keys {list(value)}"
    return f"{len(value)} places" if isinstance(value, (list, tuple)) else type(value).__name__
