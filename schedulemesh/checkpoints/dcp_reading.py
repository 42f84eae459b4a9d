"""Reads slices of tensors from folders that ``torch.distributed.checkpoint`` (DCP) has written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from schedulemesh.checkpoints.forms import Library, TensorForm
from schedulemesh.dispatch.plan import Box
from schedulemesh.dispatch.stored import common
from schedulemesh.errors import InvalidRequestError


class DcpCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a DCP folder. Its other values, such as numbers, are not read."""

    path: Path
    forms: Mapping[str, TensorForm]
    #: DCP's metadata.
    stored: Any
    library: Library = "torch"

    def copy(self, boxes: Iterable[tuple[str, Box, Any]]) -> None:
        """Copies boxes of stored tensors into tensors of their size.

        DCP reads a chunk, what one rank wrote of a tensor, as a whole: each that has wanted elements is read
        once, one after another. Raises ``InvalidRequestError`` if a file is missing or damaged.
        """
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.planner import LoadPlan

        reader = FileSystemReader(self.path)
        reader.set_up_storage_reader(self.stored, is_coordinator=False)
        by_file: dict[str, list[_Chunk]] = {}
        for chunk in _chunks(self.stored.state_dict_metadata, boxes):
            file = self.stored.storage_data[chunk.index].relative_path
            by_file.setdefault(file, []).append(chunk)
        for file, chunks in by_file.items():
            plan = LoadPlan([chunk.item(at) for at, chunk in enumerate(chunks)])
            try:
                reader.read_data(reader.prepare_local_plan(plan), _Targets(chunks)).wait()
            except Exception as error:  # what torch raises depends on where the file is damaged
                raise _unreadable(self.path / file, error) from error


def open_dcp(path: str | Path) -> DcpCheckpoint:
    """The checkpoint in a DCP folder. Its metadata is a pickle: open only what you trust, as with torch.

    Raises ``InvalidRequestError`` if there is none, it is damaged, or it has a tensor of an unknown dtype.
    """
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    folder = Path(path)
    if not (folder / ".metadata").is_file():
        raise InvalidRequestError(
            f"{folder} has no file .metadata; allowed is a folder that torch.distributed.checkpoint wrote"
        )
    try:
        stored = FileSystemReader(folder).read_metadata()
    except Exception as error:  # a pickle that is damaged, or not of DCP, may raise anything
        raise _unreadable(folder / ".metadata", error) from error
    if not isinstance(stored, Metadata):
        raise InvalidRequestError(f"{folder / '.metadata'} is not of torch.distributed.checkpoint")
    forms = {
        key: TensorForm(tuple(each.size), str(each.properties.dtype).removeprefix("torch."))
        for key, each in stored.state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    return DcpCheckpoint(path=folder, forms=forms, stored=stored)


def _unreadable(path: Path, error: Exception) -> InvalidRequestError:
    # The sentences that torch adds are about its own functions.
    reason = f"{type(error).__name__}: {error}".partition(". ")[0]
    return InvalidRequestError(f"{path} cannot be read: {reason}")


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a chunk."""

    #: DCP's name of the chunk.
    index: Any
    #: The dtype of torch.
    dtype: Any
    #: Boxes of the chunk, and the tensors into which they are copied.
    parts: list[tuple[Box, Any]] = msgspec.field(default_factory=list)

    def item(self, at: int) -> Any:
        """The item of DCP's plan that reads the smallest box with all parts."""
        from torch import Size
        from torch.distributed.checkpoint.metadata import MetadataIndex
        from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

        bounds = self._bounds()
        return ReadItem(
            type=LoadItemType.TENSOR,
            dest_index=MetadataIndex(self.index.fqn, index=at),
            dest_offsets=Size(0 for _ in bounds),
            storage_index=self.index,
            storage_offsets=Size(start for start, _ in bounds),
            lengths=Size(stop - start for start, stop in bounds),
        )

    def target(self) -> Any:
        """The tensor into which DCP copies this box; of several parts it is a temporary one."""
        import torch

        if len(self.parts) == 1:
            return self.parts[0][1]
        return torch.empty([stop - start for start, stop in self._bounds()], dtype=self.dtype)

    def distribute(self, read: Any) -> None:
        """Copies what DCP has read to the parts."""
        if len(self.parts) == 1:
            return  # it was read into its place
        bounds = self._bounds()
        for box, array in self.parts:
            array.copy_(read[_slices(box, bounds)])

    def _bounds(self) -> Box:
        boxes = [box for box, _ in self.parts]
        return tuple(
            (min(a for a, _ in dim), max(b for _, b in dim)) for dim in zip(*boxes, strict=True)
        )


class _Targets:
    """Tells DCP where each item belongs: the item's index in the plan is that of its chunk."""

    def __init__(self, chunks: Sequence[_Chunk]) -> None:
        self._chunks = chunks

    def resolve_tensor(self, item: Any) -> Any:
        return self._chunks[item.dest_index.index].target()

    def commit_tensor(self, item: Any, tensor: Any) -> None:
        self._chunks[item.dest_index.index].distribute(tensor)


def _chunks(stored: Mapping[str, Any], boxes: Iterable[tuple[str, Box, Any]]) -> Iterable[_Chunk]:
    """The chunks with wanted elements, each once."""
    from torch.distributed.checkpoint.metadata import MetadataIndex

    by_index: dict[Any, _Chunk] = {}
    for key, box, array in boxes:
        for number, chunk in enumerate(stored[key].chunks):
            chunk_box = tuple(
                (at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True)
            )
            met = common(box, chunk_box)
            if met is None:
                continue
            index = MetadataIndex(key, chunk.offsets, number)
            dtype = stored[key].properties.dtype
            entry = by_index.setdefault(index, _Chunk(index=index, dtype=dtype))
            local = tuple((a - c, b - c) for (a, b), (c, _) in zip(met, chunk_box, strict=True))
            entry.parts.append((local, array[_slices(met, box)]))
    return by_index.values()


def _slices(box: Box, outer: Box) -> tuple[slice, ...]:
    """What selects a box of the array of an outer one."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))
