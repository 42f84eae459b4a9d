"""Writes a group's tensors as safetensors files, which any program can read: each rank its slices, in place.

A file is a header in JSON and the elements of whole tensors; its size is known beforehand. Each rank creates
the files with the same header and writes its slices where they belong, so that no process ever has a whole
tensor that the group splits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from schedulemesh.checkpoints.forms import DTYPES, DTypes, TensorForm
from schedulemesh.checkpoints.group_tensors import GroupTensors
from schedulemesh.checkpoints.shared_folder import SharedFolder
from schedulemesh.dispatch.key_mapping import Source
from schedulemesh.dispatch.plan import Box
from schedulemesh.dispatch.trees import Spec
from schedulemesh.errors import InvalidRequestError, shown

#: The largest file, unless one tensor is larger.
MAX_FILE_BYTES = 5_000_000_000

#: The entry of a header that is no tensor.
_METADATA = "__metadata__"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    header: bytes
    size: int
    #: By tensor, the position of its first byte.
    offsets: dict[str, int]


def write_safetensors(
    folder: str | Path,
    arrays: Mapping[str, Any],
    spec: Spec,
    rank: int,
    *,
    tensors: Mapping[str, TensorForm],
    mapping: Mapping[str, Source] | None = None,
    ignore: Sequence[str] = (),
    dtype: DTypes = None,
    metadata: Mapping[str, str] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    attempt: str = "",
) -> bool:
    """Writes what ``rank`` holds; one of the ranks gets True: then the folder is at its path.

    All ranks call it with the same arguments, except ``arrays`` (those of the rank, by name) and ``rank``.
    ``tensors`` are the whole tensors of the group, ``spec`` how they are split. ``mapping`` says what each
    tensor of the files consists of, if it is not a tensor of the group, ``ignore`` what need not be written,
    ``dtype`` what the files have, one for all or by name. Several files get an index as of Hugging Face.
    ``attempt`` differs from that of an earlier attempt to write the same folder that did not complete it, so
    that its parts are not taken for those of this one. Raises ``InvalidRequestError``, which names the
    tensor, if the arrays do not fit the spec.
    """
    group = GroupTensors.of(tensors, spec, mapping, ignore, dtype)
    group.check(arrays, rank, ("numpy", "torch"))
    _check_metadata(metadata or {})
    if _METADATA in group.forms:
        raise InvalidRequestError(
            f"a tensor is named {_METADATA!r}, which safetensors uses for itself; give it another name, or "
            "leave it out with `ignore`"
        )
    files = _files(group.forms, max_file_bytes, {"format": "pt", **(metadata or {})})
    headers = b"".join(file.header for file in files)
    shared = SharedFolder.of(folder, group.ranks, rank, group.content + headers, attempt)
    if len(files) > 1:
        index = _index(files, group.forms)
        os.close(_created(shared.partial / "model.safetensors.index.json", index, len(index)))
    _write(shared.partial, files, group, arrays, rank)
    return shared.finish(rank, b"")


def _check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise ``InvalidRequestError`` if safetensors could not read it again."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequestError(
                f"metadata has {shown(value)} for {shown(key)}; safetensors allows strings for strings, such "
                f"as str(…)"
            )


def _write(
    folder: Path, files: Sequence[_File], group: GroupTensors, arrays: Mapping[str, Any], rank: int
) -> None:
    with ExitStack() as stack:
        opened: dict[str, tuple[int, int]] = {}
        for file in files:
            descriptor = _created(folder / file.name, file.header, file.size)
            stack.callback(os.close, descriptor)
            opened.update((key, (descriptor, offset)) for key, offset in file.offsets.items())
        for name, box, part in group.parts(arrays, rank):
            descriptor, offset = opened[name]
            _put(descriptor, offset, group.forms[name], box, _bytes(part))
        for descriptor in {each for each, _ in opened.values()}:
            os.fsync(descriptor)


def _files(forms: Mapping[str, TensorForm], most: int, metadata: Mapping[str, str]) -> list[_File]:
    """The tensors, in their order, in files of at most ``most`` bytes."""
    groups: list[dict[str, TensorForm]] = [{}]
    size = 0
    for name, form in forms.items():
        if size + _nbytes(form) > most and groups[-1]:
            groups.append({})
            size = 0
        groups[-1][name] = form
        size += _nbytes(form)
    many = len(groups) > 1
    return [
        _file(f"model-{at:05}-of-{len(groups):05}" if many else "model", group, metadata)
        for at, group in enumerate(groups, 1)
    ]


def _file(stem: str, forms: Mapping[str, TensorForm], metadata: Mapping[str, str]) -> _File:
    entries: dict[str, object] = {_METADATA: metadata}
    offsets: dict[str, int] = {}
    end = 0
    # The largest elements first, so that each tensor begins at a multiple of the size of its elements.
    for name, form in sorted(forms.items(), key=lambda each: -each[1].itemsize):
        offsets[name] = end
        end += _nbytes(form)
        entries[name] = {
            "dtype": DTYPES[form.dtype][0],
            "shape": form.shape,
            "data_offsets": (offsets[name], end),
        }
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return _File(
        name=f"{stem}.safetensors",
        header=header,
        size=len(header) + end,
        offsets={name: len(header) + offset for name, offset in offsets.items()},
    )


def _index(files: Sequence[_File], forms: Mapping[str, TensorForm]) -> bytes:
    index = {
        "metadata": {"total_size": sum(map(_nbytes, forms.values()))},
        "weight_map": {name: file.name for file in files for name in file.offsets},
    }
    return msgspec.json.format(msgspec.json.encode(index))


def _nbytes(form: TensorForm) -> int:
    return prod(form.shape) * form.itemsize


def _created(path: Path, begin: bytes, size: int) -> int:
    """A file that is open for writing; other ranks may create the same at the same time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _write_at(descriptor, memoryview(begin), 0)
    os.ftruncate(descriptor, size)
    return descriptor


def _put(descriptor: int, offset: int, form: TensorForm, box: Box, data: memoryview) -> None:
    """Writes the elements of a box of a tensor whose first byte is at ``offset``."""
    done = 0
    for start, length in _runs(form, box):
        _write_at(descriptor, data[done : done + length], offset + start)
        done += length


def _runs(form: TensorForm, box: Box) -> Iterator[tuple[int, int]]:
    """The runs of bytes of a box: offset from the tensor's first byte, and length."""
    strides = [form.itemsize * prod(form.shape[dim + 1 :]) for dim in range(len(box))]
    last = len(box) - 1
    while last > 0 and box[last] == (0, form.shape[last]):
        last -= 1
    if last < 0:
        yield 0, form.itemsize
        return
    start, stop = box[last]
    for outer in product(*(range(*span) for span in box[:last])):
        before = sum(at * stride for at, stride in zip(outer, strides, strict=False))
        yield before + start * strides[last], (stop - start) * strides[last]


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _bytes(array: Any) -> memoryview:
    """The elements of an array, row by row."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        dense = array.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # torch calls one element contiguous whatever its stride is; bytes need the stride 1.
        flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
    else:
        numpy = sys.modules["numpy"]
        flat = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    return memoryview(flat)
