"""Reads the layout of a state dict of torch's DTensors: FSDP2, tensor parallelism, or both."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec

from schedulemesh.checkpoints.forms import TensorForm, form_of
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.placement import Placement, Replicate, Shard, Sharding
from schedulemesh.errors import InvalidRequestError


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A state dict as the other functions take it."""

    #: By name, the local tensors of this process.
    arrays: dict[str, Any]
    spec: dict[str, Sharding]
    #: By name, the whole tensors.
    tensors: dict[str, TensorForm]


def describe_dtensors(state: Mapping[str, Any]) -> Described:
    """The local tensors, shardings and whole tensors of a flat state dict; views, nothing is copied.

    Tensors that are no DTensors are replicated over the ranks of the others. Raises ``InvalidRequestError``
    if a value is no tensor, none is a DTensor, or the meshes have different numbers of ranks.
    """
    import torch
    from torch.distributed.tensor import DTensor

    other = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if other:
        raise InvalidRequestError(f"{other[:4]} are no tensors; leave them out of the state dict")
    split = {name: sharding_of(each) for name, each in state.items() if isinstance(each, DTensor)}
    if not split:
        raise InvalidRequestError(
            "no tensor is a DTensor; their mesh says how many ranks there are"
        )
    sizes = {sharding.layout.size: name for name, sharding in split.items()}
    if len(sizes) != 1:
        raise InvalidRequestError(
            f"the DTensors are on meshes of {sizes} ranks; allowed is one number of ranks"
        )
    everywhere = Sharding(layout=next(iter(split.values())).layout)
    return Described(
        arrays={
            name: each.to_local() if isinstance(each, DTensor) else each
            for name, each in state.items()
        },
        spec={name: split.get(name, everywhere) for name in state},
        tensors={name: form_of(each) for name, each in state.items()},
    )


def sharding_of(dtensor: Any) -> Sharding:
    """The sharding of a DTensor; rank r of its layout is the r-th of its mesh, which holds each rank once.

    Dims of the mesh without a name are ``dim_0``, ``dim_1`` and so on. Raises ``InvalidRequestError`` if the
    tensor has partial sums, or the ranks of the mesh are not 0 to n - 1 in order.
    """
    mesh = dtensor.device_mesh
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise InvalidRequestError(
            f"the mesh has the ranks {ranks}; allowed are 0 to {len(ranks) - 1} in this order"
        )
    names = mesh.mesh_dim_names or tuple(f"dim_{dim}" for dim in range(mesh.ndim))
    sizes = dict(zip(names, mesh.mesh.shape, strict=True))
    layout = ParallelLayout(axes=tuple(reversed(sizes.items())))
    placed = [
        (name, placement, _strided_after(dtensor.placements, at, list(sizes.values())))
        for at, (name, placement) in enumerate(zip(names, dtensor.placements, strict=True))
    ]
    ordered = sorted(range(len(placed)), key=lambda at: placed[at][2])
    return Sharding(
        layout=layout,
        placements=tuple((placed[at][0], _placement(placed[at][1])) for at in ordered),
    )


def _strided_after(placements: Any, at: int, sizes: list[int]) -> float:
    """The position at which a dim of the mesh splits: a strided one after those that it strides over."""
    factor = getattr(placements[at], "split_factor", 1)
    if factor == 1:
        return at
    dim = placements[at].dim
    over = [
        later
        for later in range(at + 1, len(placements))
        if getattr(placements[later], "dim", None) == dim
    ]
    while over and prod(sizes[each] for each in over) > factor:
        over.pop()
    if prod(sizes[each] for each in over) != factor:
        raise InvalidRequestError(
            f"the placements {placements} stride over {factor} parts, which are not those of later dims of "
            f"the mesh"
        )
    return over[-1] + 0.5


def _placement(placement: Any) -> Placement:
    if placement.is_replicate():
        return Replicate()
    if placement.is_partial():
        raise InvalidRequestError(
            f"the DTensor has the placement {placement}; redistribute it to Replicate or Shard first"
        )
    return Shard(placement.dim, "chunk")
