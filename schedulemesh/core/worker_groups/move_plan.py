"""Plans a move: checks what the workers hold against the specs, and plans each tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Union

import msgspec

from schedulemesh.core.worker_groups.shards import Form, Path, spelled
from schedulemesh.dispatch.holdings import holdings
from schedulemesh.dispatch.placement import Shard, Sharding
from schedulemesh.dispatch.plan import Plan, plan
from schedulemesh.dispatch.trees import Spec, below
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.core.worker_groups.group import WorkerGroup

#: Shapes of whole tensors: one for all, or by path, joined with "/".
Shapes = Union[Mapping[str, Sequence[int]], Sequence[int], None]


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a tree that is moved."""

    path: Path
    #: The form of the part that one rank of the source holds.
    form: Form
    plan: Plan


def planned(
    src_group: WorkerGroup,
    dst_group: WorkerGroup,
    source: Spec,
    destination: Spec,
    held: Mapping[Path, Mapping[int, Form]],
    shapes: Shapes,
    key: str,
) -> Iterator[Tensor]:
    """The plan of each tensor of the tree ``key``; ``held`` gives by path and rank what is held of it.

    Raises ``InvalidRequestError`` if that does not fit the specs.
    """
    _all_there(source, held, (), f"{key!r} on group {src_group.name}")
    for number, (path, forms) in enumerate(held.items()):
        lies, goes = _sharding(source, path), _sharding(destination, path)
        form = next(iter(forms.values()))
        given = shapes.get("/".join(map(str, path))) if isinstance(shapes, Mapping) else shapes
        where = f"{spelled(path)} of {key!r} on group {src_group.name}"
        shape = _whole(lies, forms, where) if given is None else tuple(given)
        _fits(src_group, lies, shape, forms, where)
        made = plan(
            lies,
            goes,
            shape,
            itemsize=form.itemsize,
            source_workers=src_group.workers,
            destination_workers=dst_group.workers,
            rotation=number,
        )
        yield Tensor(path=path, form=form, plan=made)


def _sharding(spec: Spec, path: Path) -> Sharding:
    for at, key in enumerate(path):
        spec = below(spec, key, spelled(path[:at]))
    if not isinstance(spec, Sharding):
        raise InvalidRequestError(
            f"at {spelled(path)} lies an array; the spec has no Sharding for it"
        )
    return spec


def _all_there(spec: Spec, held: Mapping[Path, Mapping[int, Form]], at: Path, where: str) -> None:
    """Check that everything that the spec names is held by some rank."""
    if not any(path[: len(at)] == at for path in held):
        raise InvalidRequestError(
            f"the source spec names {spelled(at)}, but nobody holds it under {where}; there are "
            f"{', '.join(map(spelled, held))}"
        )
    for key, inner in spec.items() if isinstance(spec, Mapping) else ():
        if key != "*":
            _all_there(inner, held, (*at, key), where)


def _whole(sharding: Sharding, forms: Mapping[int, Form], where: str) -> tuple[int, ...]:
    """The shape of the whole tensor, from the forms of its parts."""
    if any(isinstance(how, Shard) and how.uneven == "pad" for _, how in sharding.placements):
        raise InvalidRequestError(
            f"{where} is padded, so its size cannot be told from its parts; give shapes="
        )
    form = next(iter(forms.values()))
    return tuple(
        _size(sharding, forms, dim, where) if sharding.cuts(dim, len(form.shape)) else size
        for dim, size in enumerate(form.shape)
    )


def _size(sharding: Sharding, forms: Mapping[int, Form], dim: int, where: str) -> int:
    """The size of a dim: the sum of its parts, one for each coordinate of the axes that split it."""
    ndim = len(next(iter(forms.values())).shape)
    axes = [name for name, *_ in sharding.cuts(dim, ndim)]
    found: dict[tuple[int, ...], int] = {}
    for rank, form in forms.items():
        at = sharding.layout.coordinates(rank)
        if len(form.shape) != ndim:
            raise InvalidRequestError(
                f"{where} has {ndim} dims on one rank, {form.shape} on {rank}"
            )
        found.setdefault(tuple(at[name] for name in axes), form.shape[dim])
    return sum(found.values())


def _fits(
    group: WorkerGroup,
    sharding: Sharding,
    shape: tuple[int, ...],
    forms: Mapping[int, Form],
    where: str,
) -> None:
    """Check that every rank holds its part of the tensor, and that all parts have the same type."""
    held = holdings(sharding, shape)
    first = next(iter(forms.values()))
    for rank in group.ranks:
        expected = held.local_shape(rank)
        form = forms.get(rank)
        if expected is not None and (form is None or form.shape != expected):
            given = "nothing" if form is None else f"shape {form.shape}"
            raise InvalidRequestError(
                f"{where}: rank {rank} (agent {group.agents[rank]}) holds {given}; of {shape} its part "
                f"is {expected}"
            )
        if form is not None and (form.dtype, form.library) != (first.dtype, first.library):
            raise InvalidRequestError(
                f"{where}: rank {rank} holds {form.library} {form.dtype}, another rank {first.library} "
                f"{first.dtype}; allowed is one kind"
            )
