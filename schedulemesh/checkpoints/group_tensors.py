"""What one rank of a group writes of the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from schedulemesh.checkpoints.forms import (
    DTypes,
    Library,
    TensorForm,
    converted,
    dtype_for,
    form_of,
    library_of,
)
from schedulemesh.checkpoints.loading import common_dtype, sharding_for
from schedulemesh.dispatch.arrays import unfit_tensor
from schedulemesh.dispatch.holdings import holdings
from schedulemesh.dispatch.key_mapping import Source
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.dispatch.plan import Box
from schedulemesh.dispatch.stored import Made, made_of, writes
from schedulemesh.dispatch.trees import Spec, ranks_of
from schedulemesh.errors import InvalidRequestError, shown


class GroupTensors(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a group, and those of the checkpoint that are made of them."""

    #: By name, the whole tensors that the group holds.
    held: Mapping[str, TensorForm]
    shardings: Mapping[str, Sharding]
    #: By name, the tensors of the checkpoint.
    made: Mapping[str, Made]
    forms: Mapping[str, TensorForm]
    ranks: int

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, TensorForm],
        spec: Spec,
        mapping: Mapping[str, Source] | None,
        ignore: Sequence[str],
        dtypes: DTypes,
    ) -> GroupTensors:
        """The tensors of a group with this spec; arguments as in ``write_safetensors``."""
        for name, form in tensors.items():
            if not isinstance(form, TensorForm):
                raise InvalidRequestError(
                    f"tensors has {shown(form)} for {name!r}; allowed is TensorForm(shape, dtype)"
                )
        made = made_of({name: form.shape for name, form in tensors.items()}, mapping, ignore=ignore)
        forms = {
            name: TensorForm(
                each.shape, dtype_for(name, dtypes) or common_dtype(name, each, tensors)
            )
            for name, each in made.items()
        }
        return cls(
            held=tensors,
            shardings={name: sharding_for(spec, name) for name in tensors},
            made=made,
            forms=forms,
            ranks=ranks_of(spec),
        )

    @property
    def content(self) -> bytes:
        """The same bytes on all ranks that write the same tensors in the same layout."""
        return msgspec.msgpack.encode((self.held, self.shardings, self.made, self.forms))

    def check(self, arrays: Mapping[str, Any], rank: int, allowed: Sequence[Library]) -> None:
        """Raise ``InvalidRequestError`` if the arrays of ``rank`` are not what it holds by the spec.

        ``allowed`` are the libraries whose arrays can be written.
        """
        for name, expected_form in self.held.items():
            shape = holdings(self.shardings[name], expected_form.shape).local_shape(rank)
            expected = None if shape is None else TensorForm(shape, expected_form.dtype)
            array = arrays.get(name)
            form = None if array is None else _form(name, array, rank, allowed)
            if expected is not None and form != expected:
                raise InvalidRequestError(
                    f"rank {rank} has {_shown(form)} as {name!r}; by the spec it is {_shown(expected)}"
                )
        unknown = [name for name in arrays if name not in self.held]
        if unknown:
            raise InvalidRequestError(
                f"rank {rank} has {unknown[:4]}, which are not among the tensors of the group"
            )

    def parts(self, arrays: Mapping[str, Any], rank: int) -> Iterator[tuple[str, Box, Any]]:
        """What ``rank`` writes: name in the checkpoint, position in that tensor, elements."""
        sizes = {name: form.shape for name, form in self.held.items()}
        for name, made in self.made.items():
            for region in writes(made, self.shardings, sizes, rank):
                part = arrays[region.key][tuple(slice(*span) for span in region.stored)]
                yield name, region.at, converted(part, self.forms[name].dtype)


def _form(name: str, array: Any, rank: int, allowed: Sequence[Library]) -> TensorForm:
    library = library_of(array)
    if library not in allowed:
        raise InvalidRequestError(
            f"rank {rank} has a {type(array).__name__} as {name!r}; allowed are arrays of "
            f"{' and '.join(allowed)}"
        )
    if library == "numpy" and hasattr(array, "mask"):
        raise InvalidRequestError(
            f"rank {rank} has a masked array as {name!r}, whose mask would be lost; write its data and its "
            f"mask as two arrays"
        )
    unfit = unfit_tensor(array) if library == "torch" else ""
    if unfit:
        raise InvalidRequestError(
            f"rank {rank} has {unfit} as {name!r}; allowed are strided tensors with elements"
        )
    return form_of(array)


def _shown(form: TensorForm | None) -> str:
    return "nothing" if form is None else f"{form.dtype} {form.shape}"
