"""Operations on NumPy arrays and torch tensors alike: inspect, slice, allocate, copy.

Neither library is imported here: a value can only be an array of a library that is already loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from numbers import Integral, Real
from typing import Any

from schedulemesh.dispatch.pieces import Piece
from schedulemesh.dispatch.placement import Scalar
from schedulemesh.errors import InvalidRequestError

#: One slice per dim.
Box = tuple[slice, ...]
_INF = float("inf")


def is_array(value: object) -> bool:
    """Whether the value is a NumPy array or a torch tensor."""
    return _is_numpy(value) or is_torch(value)


def is_torch(value: object) -> bool:
    """Whether the value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def unfit_tensor(tensor: Any) -> str:
    """Why the elements of a torch tensor cannot be read as bytes, in words; empty: they can."""
    torch = sys.modules["torch"]
    strided = tensor.layout is torch.strided and not tensor.is_nested
    if not strided or tensor.is_quantized or tensor.is_meta:
        return f"a tensor of layout {tensor.layout}, dtype {tensor.dtype} on {tensor.device}"
    return ""


def blank(parts: Sequence[Any], shape: Sequence[int]) -> Any:
    """A new uninitialized array of this shape that holds the elements of all ``parts``.

    It has their library, the device of the first, and their ``common_dtype``.
    """
    dtype = common_dtype(parts)
    if is_torch(parts[0]):
        return parts[0].new_empty(shape, dtype=dtype)
    return sys.modules["numpy"].empty(shape, dtype)


def common_dtype(parts: Sequence[Any]) -> Any:
    """The dtype of the arrays when they are joined: that of ``numpy.concatenate``, or of ``torch.cat``.

    Arrays without elements do not count if others have some: an empty list becomes an array of floats.
    Raises ``InvalidRequestError`` for arrays of two libraries, with masks, or of dtypes without a common one.
    """
    _check_library(parts)
    first, *others = {part.dtype: None for part in _with_elements(parts)}
    if not others:
        return first
    try:
        if is_torch(parts[0]):
            return reduce(sys.modules["torch"].promote_types, others, first)
        return sys.modules["numpy"].result_type(first, *others)
    except (TypeError, RuntimeError) as error:
        raise InvalidRequestError(
            f"arrays of {first} and {', '.join(map(str, others))} were given, which have no common dtype; "
            f"convert them to one"
        ) from error


def same_type(one: Any, other: Any) -> bool:
    """Whether two arrays have the same library and dtype."""
    return is_torch(one) == is_torch(other) and bool(one.dtype == other.dtype)


def check_unmasked(array: Any) -> None:
    """Raise ``InvalidRequestError`` for a masked array of NumPy: its mask is lost when parts are joined."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise InvalidRequestError(
            "a masked array was given, which can be neither split nor joined; give its data and its mask as "
            "two arrays"
        )


def _check_library(parts: Sequence[Any]) -> None:
    if len({is_torch(part) for part in parts}) > 1:
        raise InvalidRequestError(
            "NumPy arrays and torch tensors were given; allowed are arrays of one library"
        )
    for part in parts:
        check_unmasked(part)


def _with_elements(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays that have elements; all, if none has."""
    return [array for array in arrays if 0 not in array.shape] or arrays


def padded(like: Any, dim_pieces: tuple[Piece, ...], fill: Scalar) -> Any:
    """A new array for the pieces of the first dims of ``like``; filled if it contains padding.

    Raises ``InvalidRequestError`` if it must be filled with what its dtype does not hold.
    """
    shape = tuple(piece.size for piece in dim_pieces) + tuple(like.shape[len(dim_pieces) :])
    if all(piece.size == piece.length for piece in dim_pieces):
        return blank([like], shape)
    fill = fitting(fill, like.dtype)
    if is_torch(like):
        return like.new_full(shape, fill)
    return sys.modules["numpy"].full(shape, fill, like.dtype)


def fitting(pad_value: Scalar, dtype: Any) -> Scalar:
    """The value with which an array of this dtype, of NumPy or torch, is padded.

    Raises ``InvalidRequestError`` if the dtype does not hold it. Numbers may be rounded, but not to whole
    numbers and not to infinity; None is held by NumPy's objects only.
    """
    fits, allowed = _can_hold(pad_value, dtype)
    if not fits:
        raise InvalidRequestError(
            f"pad_value={pad_value!r} for an array of {dtype}; allowed is {allowed}"
        )
    return pad_value


def _can_hold(value: Any, dtype: Any) -> tuple[bool, str]:
    """Whether arrays of this dtype hold the value, and what they hold."""
    library, kind = _library_and_kind(dtype)
    if kind == "b":
        return value in (0, 1), "True or False"
    if kind in "iu":
        limits = library.iinfo(dtype)
        is_whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
        return (
            is_whole and limits.min <= value <= limits.max,
            f"a whole number from {limits.min} to {limits.max}",
        )
    if kind in "fc":
        most = float(library.finfo(dtype).max)
        number = isinstance(value, Real)
        fits = number and (value != value or not most < abs(value) < _INF)
        return fits, f"a number from {-most} to {most}, infinity or NaN"
    return _numpy_can_hold(value, dtype)


def _numpy_can_hold(value: Any, dtype: Any) -> tuple[bool, str]:
    """As ``_can_hold``, for dtypes of NumPy that are no numbers; all fields of a record have the value."""
    for name in dtype.names or ():
        fits, allowed = _can_hold(value, dtype[name].base)
        if not fits:
            return False, f"{allowed}, for its field {name!r}"
    if dtype.kind in "US":
        most = dtype.itemsize // sys.modules["numpy"].dtype(f"{dtype.kind}1").itemsize
        return (
            value is not None and len(str(value)) <= most,
            f"a text of {most} characters at most",
        )
    try:
        sys.modules["numpy"].full((), value, dtype)
    except (TypeError, ValueError, OverflowError):
        return False, "what numpy.full takes for it"
    return value is not None or dtype.hasobject, "what numpy.full takes for it, except None"


def _library_and_kind(dtype: Any) -> tuple[Any, str]:
    """The library of a dtype, and the letter that NumPy has for its kind."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(dtype, torch.dtype):
        return sys.modules["numpy"], dtype.kind
    if dtype is torch.bool:
        return torch, "b"
    return torch, "f" if dtype.is_floating_point or dtype.is_complex else "i"


def joined_rows(rows: Sequence[Any]) -> Any:
    """The arrays concatenated along dim 0, as a new array of their ``common_dtype``.

    Raises ``InvalidRequestError`` if they differ in another dim, or have no common dtype.
    """
    _check_library(rows)
    if not is_torch(rows[0]):
        rows = [sys.modules["numpy"].asarray(row) for row in rows]
    check_inner_dims(rows)
    common_dtype(rows)
    if is_torch(rows[0]):
        return sys.modules["torch"].cat(list(_with_elements(rows)))
    return sys.modules["numpy"].concatenate(_with_elements(rows))


def check_inner_dims(rows: Sequence[Any]) -> None:
    """Raise ``InvalidRequestError`` if arrays differ in other dims than the first."""
    shapes = {tuple(row.shape[1:]): tuple(row.shape) for row in rows}
    if len(shapes) > 1:
        raise InvalidRequestError(
            f"arrays of the shapes {', '.join(map(str, shapes.values()))} cannot be joined along dim 0; "
            f"allowed are shapes that differ in dim 0 only"
        )


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same; arrays have the same shape and elements, NaN being equal to itself."""
    if is_torch(one) and is_torch(other):
        return one.shape == other.shape and bool(
            ((one == other) | ((one != one) & (other != other))).all()  # NaN
        )
    if _is_numpy(one) or _is_numpy(other):
        return bool(sys.modules["numpy"].array_equal(one, other, equal_nan=True))
    return bool(one == other) or (one != one and other != other)  # NaN


def combined(values: Sequence[Any], how: str) -> Any:
    """The "mean", "sum", "min" or "max" of numbers, or element by element of arrays of one shape."""
    if any(map(is_torch, values)):
        return _combined_tensors(values, how)
    if any(map(_is_of_numpy, values)):
        _check_library(values)
        stacked = sys.modules["numpy"].stack(values)
        return getattr(stacked, how)(axis=0)
    if how == "mean":
        return sum(values) / len(values)
    if how == "sum":
        return sum(values)
    # As for arrays; min and max of Python would return NaN or not, depending on the order.
    if nans := [value for value in values if value != value]:
        return nans[0]
    return min(values) if how == "min" else max(values)


def _combined_tensors(values: Sequence[Any], how: str) -> Any:
    stacked = sys.modules["torch"].stack(list(values))
    if how == "mean" and not (stacked.is_floating_point() or stacked.is_complex()):
        stacked = stacked.float()
    return getattr(stacked, {"min": "amin", "max": "amax"}.get(how, how))(dim=0)


def take(array: Any, dim_pieces: tuple[Piece, ...], fill: Scalar) -> Any:
    """The pieces of the first dims of ``array``: a view if they are one run per dim, else a copy."""
    runs = tuple(piece.run for piece in dim_pieces)
    if None not in runs:
        return array[runs] if runs else array
    local = padded(array, dim_pieces, fill)
    for source_box, local_box in boxes(dim_pieces):
        local[local_box] = array[source_box]
    return local


def views(array: Any, dim: int, slices: Sequence[slice]) -> Sequence[Any]:
    """The slices of one dim, as views; a slice that is the whole array is the array itself."""
    size = array.shape[dim]
    if len(slices) == 1 and slices[0] == slice(0, size):
        return [array]
    if is_torch(array) and sum(part.stop - part.start for part in slices) == size:
        # One call makes all views; a call per view takes several times as long.
        parts: Sequence[Any] = array.split([part.stop - part.start for part in slices], dim)
        return parts
    before = (slice(None),) * dim
    return [array[index] for index in ((*before, part) for part in slices)]


def put(array: Any, dim_pieces: tuple[Piece, ...], part: Any) -> None:
    """Copies ``part``, without its padding, to its position in the first dims of ``array``."""
    for target_box, local_box in boxes(dim_pieces):
        array[target_box] = part[local_box]


def boxes(dim_pieces: tuple[Piece, ...]) -> Iterator[tuple[Box, Box]]:
    """The boxes formed by the runs of the dims: position in the whole, and in the local array."""
    for runs in product(*(piece.segments for piece in dim_pieces)):
        yield (
            tuple(slice(run.start, run.stop) for run in runs),
            tuple(slice(run.local, run.local + run.stop - run.start) for run in runs),
        )


def _is_numpy(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_of_numpy(value: object) -> bool:
    """Whether the value is an array or a scalar of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
