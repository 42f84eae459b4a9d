"""What is known of stored tensors without their values, and how they are read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, Union

import msgspec

from schedulemesh.dispatch.key_mapping import matches
from schedulemesh.dispatch.plan import Box
from schedulemesh.errors import InvalidRequestError, nearest

#: The library whose arrays are read.
Library = Literal["torch", "numpy"]
#: A dtype for all tensors, or by name, also with ``*`` and ``**``; the first that matches holds.
DTypes = Union[str, Mapping[str, str], None]

#: By name of a dtype, the name that safetensors gives it, and bytes per element.
DTYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "complex64": ("C64", 8),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}


class TensorForm(msgspec.Struct, frozen=True):
    """Shape and dtype of a whole tensor."""

    shape: tuple[int, ...]
    #: Its name in torch and NumPy, such as "bfloat16".
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidRequestError(
                f"dtype {self.dtype!r}{nearest(self.dtype, DTYPES)}; allowed are {', '.join(DTYPES)}"
            )

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return DTYPES[self.dtype][1]


class StoredTensors(Protocol):
    """The tensors of a checkpoint."""

    library: Library

    @property
    def forms(self) -> Mapping[str, TensorForm]:
        """Each stored tensor by name."""

    def copy(self, wanted: Iterable[tuple[str, Box, Any]]) -> None:
        """Copies boxes of stored tensors into arrays of their size, converting the dtype if it differs."""


def form_of(array: Any) -> TensorForm:
    """The form of an array."""
    return TensorForm(tuple(array.shape), str(array.dtype).removeprefix("torch."))


def dtype_for(name: str, dtypes: DTypes) -> str | None:
    """The dtype that a tensor of this name is to have; None: the one that it has."""
    if dtypes is None or isinstance(dtypes, str):
        found = dtypes
    else:
        found = next((to for pattern, to in dtypes.items() if matches(pattern, name)), None)
    if found is not None and found not in DTYPES:
        raise InvalidRequestError(
            f"{name}: dtype {found!r}{nearest(found, DTYPES)}; allowed are {', '.join(DTYPES)}"
        )
    return found


def new_array(library: Library, shape: tuple[int, ...], dtype: str, fill: Any) -> Any:
    """A new array, filled with ``fill``; None: not filled."""
    if library == "torch":
        import torch

        kind = getattr(torch, dtype)
        return (
            torch.empty(shape, dtype=kind) if fill is None else torch.full(shape, fill, dtype=kind)
        )
    import numpy as np

    check_dtype(library, dtype)
    return np.empty(shape, dtype) if fill is None else np.full(shape, fill, np.dtype(dtype))


def check_dtype(library: Library, dtype: str) -> None:
    """Raise ``InvalidRequestError`` if a library has no such dtype."""
    if library == "numpy":
        import numpy as np

        if not hasattr(np, dtype):
            raise InvalidRequestError(
                f"NumPy has no dtype {dtype}; open the checkpoint with library='torch'"
            )


def converted(array: Any, dtype: str) -> Any:
    """The array with another dtype."""
    if dtype == form_of(array).dtype:
        return array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.to(getattr(torch, dtype))
    return array.astype(dtype)
