"""Allocates, slices, packs and samples arrays of both libraries."""

from __future__ import annotations

import hashlib
import importlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from schedulemesh.core.worker_groups.array_trees import Path, spelled
from schedulemesh.core.worker_groups.shards import Form, Slices, TargetTensors, form_of
from schedulemesh.core.worker_groups.shared_memory import BlockOffsets, Blocks
from schedulemesh.dispatch.arrays import fitting, is_torch
from schedulemesh.dispatch.placement import Scalar
from schedulemesh.dispatch.plan import Box
from schedulemesh.domain.user_data import UserArray
from schedulemesh.errors import InvalidRequestError

#: Slices of at most this many bytes are packed into one buffer: pickling one takes as long as copying this.
PACKED_BYTES = 1 << 17
#: New arrays of at most half of this share blocks of at most this many bytes, which are freed with the last
#: array in them.
BLOCK_BYTES = 1 << 25
#: Arrays in a common buffer begin at multiples of this, so that they can be viewed with their own dtype.
_ALIGNMENT = 64
#: Elements that a sample has at most, about.
_SAMPLE = 4096


def slices_of(arrays: Mapping[Path, UserArray], slices: Sequence[Slices]) -> list[UserArray]:
    """The slices of the arrays held: first one buffer of all small ones, then the large ones as views."""
    small: list[UserArray] = []
    large: list[UserArray] = []
    for slice_set in slices:
        for path in slice_set.paths:
            array = array_at(arrays, path)
            for box in slice_set.boxes:
                part = sliced(array, box)
                (small if part.nbytes <= PACKED_BYTES else large).append(part)
    return [_packed(small), *large]


def as_tensors(parts: Sequence[UserArray]) -> list[UserArray]:
    """What ``slices_of`` returns of tensors, as contiguous tensors."""
    import torch

    packed, *large = parts
    return [torch.from_numpy(packed), *(part.contiguous() for part in large)]


def received(
    arrived: Sequence[UserArray], slices: Sequence[Slices], new: Mapping[Path, UserArray]
) -> Iterator[tuple[int, Path, list[UserArray]]]:
    """What ``slices_of`` returned: number of the slices, path, and the boxes as views of what arrived.

    The boxes have the types of the new arrays into which they are copied.
    """
    large = iter(arrived[1:])
    packed = arrived[0].numpy() if is_torch(arrived[0]) else arrived[0]
    offset = 0
    for number, slice_set in enumerate(slices):
        for path in slice_set.paths:
            form = form_of(new[path])
            views = []
            for box in slice_set.boxes:
                shape = tuple(stop - start for start, stop in box)
                size = math.prod(shape) * form.itemsize
                if size > PACKED_BYTES:
                    views.append(next(large))
                    continue
                views.append(_viewed(packed[offset : offset + size], form, shape))
                offset += _aligned(size)
            yield number, path, views


def values(array: UserArray) -> UserArray:
    """The array without its gradient."""
    return array.detach() if is_torch(array) else array


def sliced(array: UserArray, box: Box) -> UserArray:
    """A view of the box of an array, without its gradient; a value without dims has the empty box."""
    return values(array)[index(box)] if box else values(array)


def put(array: UserArray, box: Box, part: UserArray) -> None:
    """Copy a part into the box of an array."""
    array[index(box)] = part


def index(box: Box) -> Any:
    """What selects the box of an array."""
    return tuple(slice(start, stop) for start, stop in box) or ...


def allocated(requests: Iterable[TargetTensors]) -> dict[Path, UserArray]:
    """By path an array of the wanted form, filled if some of it is not overwritten; None: nothing is wanted.

    Small arrays share blocks, because fresh memory is slow where it is divided: the kernel maps a large block
    in pages of 2 MiB, and small arrays in pages of 4 KiB.
    """
    arrays: dict[Path, UserArray] = {}
    small: list[tuple[Path, Form]] = []
    for request in requests:
        if (
            request.form is None
            or request.fill is not None
            or request.form.nbytes > BLOCK_BYTES // 2
        ):
            arrays.update((path, _new(request)) for path in request.paths)
        else:
            small += [(path, request.form) for path in request.paths]
    for block in _blocks(small):
        arrays.update(_divided(block))
    return arrays


def shared(
    blocks: Blocks, requests: Sequence[TargetTensors], move_id: str
) -> tuple[list[BlockOffsets | None], dict[Path, UserArray]]:
    """Arrays of the wanted forms in one new block, to which other processes can write; by path.

    Also where those of each form begin; None: they have no elements.
    """
    sizes = [_size_of(request) for request in requests]
    if not any(sizes):
        return [None] * len(requests), {
            path: _new(request) for request in requests for path in request.paths
        }
    location, memory = blocks.new(sum(sizes), move_id)
    places: list[BlockOffsets | None] = []
    arrays: dict[Path, UserArray] = {}
    offset = 0
    for request, size in zip(requests, sizes, strict=True):
        places.append(BlockOffsets(location=location, offset=offset) if size else None)
        arrays.update(
            zip(request.paths, _made_in(memory[offset : offset + size], request), strict=True)
        )
        offset += size
    return places, arrays


def _size_of(request: TargetTensors) -> int:
    return 0 if request.form is None else _aligned(request.form.nbytes) * len(request.paths)


def _made_in(memory: UserArray, request: TargetTensors) -> Iterator[UserArray]:
    """The arrays of one form. Each has a storage of its own, so that PyTorch saves it without the others."""
    form = request.form
    for index in range(len(request.paths)):
        if form is None or not form.nbytes:
            yield _new(request)
            continue
        begin = index * _aligned(form.nbytes)
        array = _viewed(memory[begin : begin + form.nbytes], form, form.shape)
        if request.fill is not None:
            array[...] = _fill(request, form)
        yield array


def in_block(memory: UserArray, form: Form, count: int) -> Iterator[UserArray]:
    """So many arrays of a form, one after another in these bytes."""
    dtype, size = _dtype(form), _aligned(form.nbytes)
    data = _of_library(memory, form)
    for offset in range(0, count * size, size):
        yield data[offset : offset + form.nbytes].view(dtype).reshape(form.shape)


def _blocks(small: Iterable[tuple[Path, Form]]) -> Iterator[list[tuple[Path, Form]]]:
    """The arrays in their order, as many together as fit into one block."""
    block: list[tuple[Path, Form]] = []
    size = 0
    for path, form in small:
        if size + _aligned(form.nbytes) > BLOCK_BYTES:
            yield block
            block, size = [], 0
        block.append((path, form))
        size += _aligned(form.nbytes)
    if block:
        yield block


def _divided(block: Sequence[tuple[Path, Form]]) -> Iterator[tuple[Path, UserArray]]:
    """Arrays of these forms, one after another in new memory."""
    import numpy as np

    memory = np.empty(sum(_aligned(form.nbytes) for _, form in block), np.uint8)
    offset = 0
    for path, form in block:
        yield path, _viewed(memory[offset : offset + form.nbytes], form, form.shape)
        offset += _aligned(form.nbytes)


def _new(request: TargetTensors) -> UserArray:
    form = request.form
    if form is None:
        return None
    library = importlib.import_module(form.library)
    dtype = _dtype(form)
    if request.fill is None:
        return library.empty(form.shape, dtype=dtype)
    return library.full(form.shape, _fill(request, form), dtype=dtype)


def _fill(request: TargetTensors, form: Form) -> Scalar:
    """The value of padding; raises ``InvalidRequestError`` if arrays of the form do not hold it."""
    try:
        return fitting(request.fill, _dtype(form))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{spelled(request.paths[0])}: {error}") from error


def sample(array: UserArray) -> bytes:
    """A hash of evenly spaced elements of an array: equal arrays of one form have equal hashes."""
    ndim = max(len(array.shape), 1)
    most = max(2, math.ceil(_SAMPLE ** (1 / ndim)))
    steps = tuple(slice(None, None, max(1, -(-size // most))) for size in array.shape)
    elements = values(array)[steps] if steps else values(array)
    return hashlib.blake2b(_bytes(elements), digest_size=16).digest()


def _bytes(array: UserArray) -> bytes:
    if not is_torch(array):
        return bytes(array.tobytes())
    import torch

    # A tensor of one element may have any stride, and counts as contiguous with each.
    plain = array.cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(plain.reshape(-1).view(torch.uint8).numpy())


def array_at(arrays: Mapping[Path, UserArray], path: Path) -> UserArray:
    """The array held at a path; raises ``InvalidRequestError`` if it is no longer there."""
    if path not in arrays:
        raise InvalidRequestError(f"there is no array at {spelled(path)} any more")
    return arrays[path]


def _packed(parts: Iterable[UserArray]) -> UserArray:
    """The bytes of the parts in one NumPy array, one after another."""
    import numpy as np

    parts = list(parts)
    buffer = np.empty(sum(_aligned(part.nbytes) for part in parts), np.uint8)
    offset = 0
    for part in parts:
        _viewed(buffer[offset : offset + part.nbytes], form_of(part), tuple(part.shape))[...] = part
        offset += _aligned(part.nbytes)
    return buffer


def _viewed(data: UserArray, form: Form, shape: tuple[int, ...]) -> UserArray:
    """The bytes as an array of this form's type and this shape."""
    return _of_library(data, form).view(_dtype(form)).reshape(shape)


def _of_library(data: UserArray, form: Form) -> UserArray:
    """The same bytes as an array of the form's library."""
    if form.library == "numpy":
        return data
    import torch

    if not data.size:
        return torch.empty(0, dtype=torch.uint8)
    if data.flags.writeable:
        return torch.from_numpy(data)
    with warnings.catch_warnings():
        # PyTorch warns that a tensor of a read-only buffer can be written to; nobody writes to this one.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(data)


def _dtype(form: Form) -> UserArray:
    library = importlib.import_module(form.library)
    if form.library == "torch":
        return getattr(library, str(form.dtype))
    from numpy.lib.format import descr_to_dtype

    return descr_to_dtype(form.dtype)  # type: ignore[arg-type]  # it takes what dtype_to_descr gives


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
