"""Operations on NumPy arrays and torch tensors alike: inspect, slice, allocate, copy.

Neither library is imported here: a value can only be an array of a library that is already loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from schedulemesh.dispatch.pieces import Piece
from schedulemesh.dispatch.placement import Scalar

#: One slice per dim.
Box = tuple[slice, ...]


def is_array(value: object) -> bool:
    """Whether the value is a NumPy array or a torch tensor."""
    return _is_numpy(value) or is_torch(value)


def is_torch(value: object) -> bool:
    """Whether the value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def blank(like: Any, shape: Sequence[int]) -> Any:
    """A new uninitialized array of this shape, with the library, dtype and device of ``like``."""
    if is_torch(like):
        return like.new_empty(shape)
    return sys.modules["numpy"].empty(shape, like.dtype)


def padded(like: Any, held: tuple[Piece, ...], fill: Scalar) -> Any:
    """A new array for the pieces held of the first dims of ``like``; filled if it contains padding."""
    shape = tuple(piece.size for piece in held) + tuple(like.shape[len(held) :])
    if all(piece.size == piece.length for piece in held):
        return blank(like, shape)
    if is_torch(like):
        return like.new_full(shape, fill)
    return sys.modules["numpy"].full(shape, fill, like.dtype)


def joined_rows(rows: Sequence[Any]) -> Any:
    """The arrays concatenated along dim 0, as a new array."""
    if is_torch(rows[0]):
        return sys.modules["torch"].cat(list(rows))
    return sys.modules["numpy"].concatenate(rows)


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
    if is_torch(values[0]):
        return _combined_tensors(values, how)
    if _is_numpy(values[0]):
        stacked = sys.modules["numpy"].stack(values)
        return getattr(stacked, how)(axis=0)
    if how == "mean":
        return sum(values) / len(values)
    if how == "sum":
        return sum(values)
    return min(values) if how == "min" else max(values)


def _combined_tensors(values: Sequence[Any], how: str) -> Any:
    stacked = sys.modules["torch"].stack(list(values))
    if how == "mean" and not (stacked.is_floating_point() or stacked.is_complex()):
        stacked = stacked.float()
    return getattr(stacked, {"min": "amin", "max": "amax"}.get(how, how))(dim=0)


def take(array: Any, held: tuple[Piece, ...], fill: Scalar) -> Any:
    """The pieces held of the first dims of ``array``: a view if they are one run per dim, else a copy."""
    runs = tuple(piece.run for piece in held)
    if None not in runs:
        return array[runs] if runs else array
    local = padded(array, held, fill)
    for whole, here in boxes(held):
        local[here] = array[whole]
    return local


def views(array: Any, dim: int, slices: Sequence[slice]) -> Sequence[Any]:
    """The slices of one dim, as views; a slice that is the whole array is the array itself."""
    size = array.shape[dim]
    if len(slices) == 1 and slices[0] == slice(0, size):
        return [array]
    if is_torch(array) and sum(part.stop - part.start for part in slices) == size:
        # One call makes all views; a call per view takes several times as long.
        found: Sequence[Any] = array.split([part.stop - part.start for part in slices], dim)
        return found
    before = (slice(None),) * dim
    return [array[index] for index in ((*before, part) for part in slices)]


def put(array: Any, held: tuple[Piece, ...], part: Any) -> None:
    """Copies ``part``, without its padding, to its position in the first dims of ``array``."""
    for whole, here in boxes(held):
        array[whole] = part[here]


def boxes(held: tuple[Piece, ...]) -> Iterator[tuple[Box, Box]]:
    """The boxes formed by the runs of the dims: position in the whole, and in the local array."""
    for runs in product(*(piece.segments for piece in held)):
        yield (
            tuple(slice(run.start, run.stop) for run in runs),
            tuple(slice(run.local, run.local + run.stop - run.start) for run in runs),
        )


def _is_numpy(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
