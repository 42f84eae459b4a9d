"""What is known of stored tensors without their values, and how they are read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Literal, Protocol, Union

import msgspec

from schedulemesh.dispatch.arrays import fitting, is_torch
from schedulemesh.dispatch.key_mapping import matches
from schedulemesh.dispatch.placement import Scalar, whole_numbers
from schedulemesh.dispatch.plan import Box
from schedulemesh.errors import InvalidRequestError, nearest

#: The library whose arrays are read.
Library = Literal["torch", "numpy"]
#: A name such as "bfloat16", or a dtype of torch or NumPy.
DType = Any
#: A dtype for all tensors, or by name, also with ``*`` and ``**``; the first that matches holds.
DTypes = Union[DType, Mapping[str, DType], None]

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
    """Shape and dtype of a whole tensor; the dtype may be given as one of torch or NumPy."""

    shape: tuple[int, ...]
    #: Its name in torch and NumPy, such as "bfloat16".
    dtype: str

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        force(self, "shape", whole_numbers(self.shape, "shape"))
        force(self, "dtype", dtype_name(self.dtype))

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

    def copy(self, boxes: Iterable[tuple[str, Box, Any]]) -> None:
        """Copies boxes of stored tensors into arrays of their size, converting the dtype if it differs."""


def form_of(array: Any) -> TensorForm:
    """The form of an array."""
    return TensorForm(array.shape, array.dtype)


def library_of(array: Any) -> Library | None:
    """The library of an array, or of a scalar of NumPy; None: it is neither."""
    if is_torch(array):
        return "torch"
    numpy = sys.modules.get("numpy")
    is_numpy = numpy is not None and isinstance(array, (numpy.ndarray, numpy.generic))
    return "numpy" if is_numpy else None


def dtype_name(dtype: DType) -> str:
    """The name of a dtype. Raises ``InvalidRequestError`` if safetensors has none like it."""
    # NumPy's types, such as numpy.float16, are classes; its dtypes and those of torch are not.
    name = dtype.__name__.rstrip("_") if isinstance(dtype, type) else str(dtype)
    name = name.removeprefix("torch.")
    if name not in DTYPES:
        raise InvalidRequestError(
            f"dtype {name!r}{nearest(name, DTYPES)}; allowed are {', '.join(DTYPES)}"
        )
    return name


def dtype_for(name: str, dtypes: DTypes) -> str | None:
    """The dtype that a tensor of this name is to have; None: the one that it has."""
    dtype = dtypes
    if isinstance(dtypes, Mapping):
        dtype = next((to for pattern, to in dtypes.items() if matches(pattern, name)), None)
    try:
        return None if dtype is None else dtype_name(dtype)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error}") from error


def new_array(
    library: Library, shape: tuple[int, ...], dtype: str, pad_value: Scalar, *, pads: bool
) -> Any:
    """A new array; filled with ``pad_value`` if some of it is padding. An error says that it does not fit."""
    check_dtype(library, dtype)
    module = import_module(library)
    kind = getattr(module, dtype) if library == "torch" else module.dtype(dtype)
    if not pads:
        return module.empty(shape, dtype=kind)
    return module.full(shape, fitting(pad_value, kind), dtype=kind)


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
