"""Plans a move: checks what the workers hold against the specs, and plans each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, Union

import msgspec

from schedulemesh.core.worker_groups.array_trees import ArrayMark, Path, merged, paths, spelled
from schedulemesh.core.worker_groups.shards import Form, Held
from schedulemesh.dispatch.holdings import Holdings, holdings
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.placement import Replicate, Shard, Sharding
from schedulemesh.dispatch.plan import Plan, plan
from schedulemesh.dispatch.routes import Worker
from schedulemesh.dispatch.trees import Spec, below, shardings_of
from schedulemesh.domain.user_data import UserValue
from schedulemesh.errors import InvalidRequestError

#: Shapes of whole tensors: one for all, or by path, joined with "/".
Shapes = Union[Mapping[str, Sequence[int]], Sequence[int], None]


class PlannedGroup(Protocol):
    """What planning needs to know of a group of workers."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def layout(self) -> ParallelLayout:
        """How its ranks are arranged."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents, by rank."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        """What identifies its workers, also across groups, by rank."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a tree that is moved."""

    path: Path
    #: The form of the part that one rank of the source holds.
    form: Form
    plan: Plan


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that is moved."""

    tensors: tuple[Tensor, ...]
    #: The tree with marks in place of its arrays.
    outline: UserValue


def planned(
    src_group: PlannedGroup,
    dst_group: PlannedGroup,
    source: Spec,
    destination: Spec,
    sources: Mapping[int, Held],
    shapes: Shapes,
    key: str,
) -> Tree:
    """The plan of each tensor of the tree ``key``; ``sources`` says by rank what is there of it.

    Raises ``InvalidRequestError`` if that does not fit the specs, or if the shape of a tensor that the source
    splits is not known.
    """
    where = f"{key!r} on group {src_group.name}"
    outline = merged({rank: held_tree.outline for rank, held_tree in sources.items()})
    _all_there(source, set(paths(outline)), (), where)
    known_shapes = _known_shapes(sources, shapes, where)
    tensors = []
    alike: Counter[Any] = Counter()
    for path in (path for path in paths(outline) if _is_array(outline, path)):
        forms = {
            rank: held_tree.forms[path]
            for rank, held_tree in sources.items()
            if path in held_tree.forms
        }
        lies, goes = _sharding(source, path), _sharding(destination, path)
        place = f"{spelled(path)} of {where}"
        shape = _whole(lies, forms, known_shapes, path, place)
        split = holdings(lies, shape)
        _fits(src_group, split, forms, place)
        _replicas_agree(src_group, split, sources, path, place)
        form = next(iter(forms.values()))
        same = (lies, goes, shape, form.kind)
        made = plan(
            lies,
            goes,
            shape,
            itemsize=form.itemsize,
            source_workers=src_group.workers,
            destination_workers=dst_group.workers,
            rotation=alike[same] % max(map(len, split.grid.owners.values())),
        )
        alike[same] += 1
        tensors.append(Tensor(path=path, form=form, plan=made))
    return Tree(tensors=tuple(tensors), outline=outline)


def has_replicas(spec: Spec) -> bool:
    """Whether several ranks hold the same elements of any tensor."""
    return any(
        size > 1 and isinstance(dict(sharding.placements).get(name, Replicate()), Replicate)
        for sharding in shardings_of(spec)
        for name, size in sharding.layout.axes
    )


def _is_array(outline: UserValue, path: Path) -> bool:
    for key in path:
        outline = outline[key]
    return isinstance(outline, ArrayMark)


def _sharding(spec: Spec, path: Path) -> Sharding:
    for depth, key in enumerate(path):
        spec = below(spec, key, spelled(path[:depth]))
    if not isinstance(spec, Sharding):
        raise InvalidRequestError(
            f"at {spelled(path)} lies an array; the spec has no Sharding for it"
        )
    return spec


def _all_there(spec: Spec, held_paths: set[Path], at: Path, where: str) -> None:
    """Check that everything that the spec names is held by some rank."""
    if not any(path[: len(at)] == at for path in held_paths):
        raise InvalidRequestError(
            f"the source spec names {spelled(at)}, but nobody holds it under {where}; there are "
            f"{', '.join(map(spelled, held_paths))}"
        )
    for key, inner in spec.items() if isinstance(spec, Mapping) else ():
        if key != "*":
            _all_there(inner, held_paths, (*at, key), where)


def _known_shapes(
    sources: Mapping[int, Held], shapes: Shapes, where: str
) -> Mapping[str, tuple[int, ...]] | tuple[int, ...]:
    """The shapes that the caller has given, beside those that the models know."""
    if shapes is not None and not isinstance(shapes, Mapping):
        return tuple(shapes)
    by_path: dict[str, tuple[int, ...]] = {}
    for rank, held_tree in sources.items():
        for path, shape in held_tree.shapes.items():
            if by_path.setdefault(path, shape) != shape:
                raise InvalidRequestError(
                    f"{path} of {where} has the shape {by_path[path]} as whole on one rank, {shape} on rank "
                    f"{rank}; allowed is one, or shapes= of the call"
                )
    return by_path | {path: tuple(shape) for path, shape in (shapes or {}).items()}


def _whole(
    sharding: Sharding,
    forms: Mapping[int, Form],
    known_shapes: Mapping[str, tuple[int, ...]] | tuple[int, ...],
    path: Path,
    where: str,
) -> tuple[int, ...]:
    """The shape of the whole tensor. It is never computed from the parts: a wrong spec would fit them."""
    shape = (
        known_shapes.get("/".join(map(str, path)))
        if isinstance(known_shapes, Mapping)
        else known_shapes
    )
    if shape is not None:
        return shape
    rank, form = next(iter(forms.items()))
    if sharding.is_whole:
        return form.shape
    raise InvalidRequestError(
        f"{where}: the shape of the whole tensor is not known; rank {rank} holds {form.shape}, and the "
        f"source spec splits it{_sums(sharding, forms)}. Give shapes={{{'/'.join(map(str, path))!r}: …}}, or "
        f"let the class of the agents override whole_shapes"
    )


def _sums(sharding: Sharding, forms: Mapping[int, Form]) -> str:
    """What the parts would add up to, for a message."""
    shapes = [form.shape for form in forms.values()]
    if any(len(shape) != len(shapes[0]) for shape in shapes) or _pads(sharding):
        return ""
    sizes = tuple(_size(sharding, forms, dim, len(shapes[0])) for dim in range(len(shapes[0])))
    return f", so that the parts make {sizes}"


def _pads(sharding: Sharding) -> bool:
    return any(isinstance(how, Shard) and how.uneven == "pad" for _, how in sharding.placements)


def _size(sharding: Sharding, forms: Mapping[int, Form], dim: int, ndim: int) -> int:
    """The sum of a dim's parts, one for each coordinate of the axes that split it."""
    axes = [name for name, *_ in sharding.cuts(dim, ndim)]
    sizes: dict[tuple[int, ...], int] = {}
    for rank, form in forms.items():
        coordinates = sharding.layout.coordinates(rank)
        sizes.setdefault(tuple(coordinates[name] for name in axes), form.shape[dim])
    return sum(sizes.values())


def _fits(group: PlannedGroup, split: Holdings, forms: Mapping[int, Form], where: str) -> None:
    """Check that every rank holds its part of the tensor, and that all parts have the same type."""
    first = next(iter(forms.values()))
    for rank in range(group.layout.size):
        expected = split.local_shape(rank)
        form = forms.get(rank)
        if expected is not None and (form is None or form.shape != expected):
            actual = "nothing" if form is None else f"shape {form.shape}"
            raise InvalidRequestError(
                f"{where}: rank {rank} (agent {group.agents[rank]}) holds {actual}; of {split.shape} its "
                f"part is {expected}"
            )
        if form is not None and form.kind != first.kind:
            raise InvalidRequestError(
                f"{where}: rank {rank} holds {form.kind}, another rank {first.kind}; allowed is one kind"
            )


def _replicas_agree(
    group: PlannedGroup, split: Holdings, sources: Mapping[int, Held], path: Path, where: str
) -> None:
    """Check that ranks which hold the same elements by the spec hold the same values."""
    for cell, owners in split.grid.owners.items():
        if len(owners) == 1 or any(piece.size != piece.length for piece in split.of_cell(cell)):
            continue  # what the padding holds does not matter
        sampled = [rank for rank in owners if path in sources[rank].samples]
        for first, rank in pairwise(sampled):
            if sources[rank].samples[path] != sources[first].samples[path]:
                raise InvalidRequestError(
                    f"{where}: by the source spec the ranks {first} and {rank} (agents {group.agents[first]} "
                    f"and {group.agents[rank]}) hold the same elements, but their values differ; name every "
                    f"axis that splits it, or pass check_replicas=False if replicas may differ"
                )


def in_rounds(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """The tensors in order, in rounds of at most ``limit`` bytes, or of one tensor."""
    some: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if some and size + tensor.plan.bytes_moved > limit:
            yield some
            some, size = [], 0
        some.append(tensor)
        size += tensor.plan.bytes_moved
    yield some
