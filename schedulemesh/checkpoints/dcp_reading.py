"""Reads slices of tensors from folders that ``torch.distributed.checkpoint`` (DCP) has written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def copy(self, wanted: Iterable[tuple[str, Box, Any]]) -> None:
        """Copies boxes of stored tensors into tensors of their size.

        DCP reads a chunk, what one rank wrote of a tensor, as a whole; chunks without a wanted element are
        not read.
        """
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.planner import LoadPlan

        items: list[Any] = []
        targets: list[Any] = []
        for key, box, array in wanted:
            for item, part in _items(key, self.stored.state_dict_metadata[key], box, len(items)):
                items.append(item)
                targets.append(array[part])
        reader = FileSystemReader(self.path)
        reader.set_up_storage_reader(self.stored, is_coordinator=False)
        plan = reader.prepare_local_plan(LoadPlan(items))
        reader.read_data(plan, _Targets(targets)).wait()


def open_dcp(path: str | Path) -> DcpCheckpoint:
    """The checkpoint in a DCP folder. Its metadata is a pickle: open only what you trust, as with torch.

    Raises ``InvalidRequestError`` if there is none, or it has a tensor of an unknown dtype.
    """
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    folder = Path(path)
    if not (folder / ".metadata").is_file():
        raise InvalidRequestError(
            f"{folder} has no file .metadata; allowed is a folder that torch.distributed.checkpoint wrote"
        )
    stored = FileSystemReader(folder).read_metadata()
    forms = {
        key: TensorForm(tuple(each.size), str(each.properties.dtype).removeprefix("torch."))
        for key, each in stored.state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    return DcpCheckpoint(path=folder, forms=forms, stored=stored)


class _Targets:
    """Tells DCP where each item belongs: the item's index in the plan is that of its target."""

    def __init__(self, targets: list[Any]) -> None:
        self._targets = targets

    def resolve_tensor(self, item: Any) -> Any:
        return self._targets[item.dest_index.index]

    def commit_tensor(self, item: Any, tensor: Any) -> None:
        """Do nothing: the elements are in the target."""


def _items(key: str, stored: Any, box: Box, first: int) -> list[tuple[Any, tuple[slice, ...]]]:
    """One item per chunk that intersects the box, and where it belongs in the array of the box."""
    from torch import Size
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

    found: list[tuple[Any, tuple[slice, ...]]] = []
    for number, chunk in enumerate(stored.chunks):
        spans = tuple((at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
        met = common(box, spans)
        if met is None:
            continue
        item = ReadItem(
            type=LoadItemType.TENSOR,
            dest_index=MetadataIndex(key, index=first + len(found)),
            dest_offsets=Size(a - c for (a, _), (c, _) in zip(met, box, strict=True)),
            storage_index=MetadataIndex(key, chunk.offsets, number),
            storage_offsets=Size(a - c for (a, _), (c, _) in zip(met, spans, strict=True)),
            lengths=Size(b - a for a, b in met),
        )
        part = tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(met, box, strict=True))
        found.append((item, part))
    return found
