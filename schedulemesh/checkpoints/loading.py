"""Reads what one rank of a group holds of the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from schedulemesh.checkpoints.forms import DTypes, StoredTensors, TensorForm, dtype_for, new_array
from schedulemesh.dispatch.holdings import holdings
from schedulemesh.dispatch.key_mapping import Source
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.dispatch.plan import Box
from schedulemesh.dispatch.stored import Made, Sizes, made_of, reads
from schedulemesh.dispatch.trees import Spec, below
from schedulemesh.errors import InvalidRequestError


def load_shards(
    stored: StoredTensors,
    spec: Spec,
    rank: int,
    *,
    mapping: Mapping[str, Source] | None = None,
    shapes: Sizes | None = None,
    ignore: Sequence[str] = (),
    dtype: DTypes = None,
) -> dict[str, Any]:
    """The arrays of ``rank`` by name, without those of which it holds nothing; only its slices are read.

    ``spec`` is one ``Sharding`` for all tensors, or one for each name. ``mapping`` says what each tensor
    consists of, if names or contents differ from what is stored (see ``dispatch.made_of``, also for
    ``ignore`` and errors). ``shapes`` are those of the model: give them, so that nothing can be missing.
    ``dtype`` is what the arrays have, one for all or by name: a name such as "bfloat16", or a dtype of torch
    or NumPy; None: the dtype that is stored.
    """
    forms = stored.forms
    made = made_of(
        {key: form.shape for key, form in forms.items()}, mapping, shapes=shapes, ignore=ignore
    )
    arrays: dict[str, Any] = {}
    boxes: list[tuple[str, Box, Any]] = []
    for name, tensor in made.items():
        sharding = sharding_for(spec, name)
        array = _array(stored, name, tensor, sharding, rank, dtype)
        if array is not None:
            arrays[name] = array
            boxes += _parts_to_read(tensor, sharding, rank, array)
    stored.copy(boxes)
    return arrays


def sharding_for(spec: Spec, name: str) -> Sharding:
    """The sharding of a tensor."""
    sharding = below(spec, name, "")
    if not isinstance(sharding, Sharding):
        raise InvalidRequestError(f"the spec of {name!r} is {sharding!r}; allowed is a Sharding")
    return sharding


def common_dtype(name: str, made: Made, forms: Mapping[str, TensorForm]) -> str:
    """The dtype of all stored tensors of which ``made`` consists. An error names them."""
    kinds = {forms[region.key].dtype: region.key for region in made.regions}
    if len(kinds) > 1:
        raise InvalidRequestError(
            f"{name} is made of {sorted(kinds.values())} with the dtypes {sorted(kinds)}; give its dtype"
        )
    return next(iter(kinds))


def _array(
    stored: StoredTensors, name: str, made: Made, sharding: Sharding, rank: int, dtypes: DTypes
) -> Any:
    """A new array for what the rank holds; None: it holds nothing."""
    pieces = holdings(sharding, made.shape).of_rank(rank)
    if pieces is None:
        return None
    dtype = dtype_for(name, dtypes) or common_dtype(name, made, stored.forms)
    pads = any(piece.size > piece.length for piece in pieces)
    shape = tuple(piece.size for piece in pieces)
    try:
        return new_array(stored.library, shape, dtype, sharding.pad_value, pads=pads)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error}") from error


def _parts_to_read(
    made: Made, sharding: Sharding, rank: int, array: Any
) -> Iterator[tuple[str, Box, Any]]:
    for region in reads(made, sharding, rank):
        # With the ellipsis it is a view also of an array without dims.
        part = (*(slice(*span) for span in region.at), ...)
        yield region.key, region.stored, array[part]
