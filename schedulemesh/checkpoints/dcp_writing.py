"""Writes a group's tensors as a folder of ``torch.distributed.checkpoint`` (DCP), without process groups."""

from __future__ import annotations

import pickle  # as DCP itself, whose metadata is a pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schedulemesh.checkpoints.forms import DTypes, TensorForm
from schedulemesh.checkpoints.group_tensors import GroupTensors
from schedulemesh.checkpoints.shared_folder import SharedFolder
from schedulemesh.dispatch.key_mapping import Source
from schedulemesh.dispatch.plan import Box
from schedulemesh.dispatch.trees import Spec


def write_dcp(
    folder: str | Path,
    arrays: Mapping[str, Any],
    spec: Spec,
    rank: int,
    *,
    tensors: Mapping[str, TensorForm],
    mapping: Mapping[str, Source] | None = None,
    ignore: Sequence[str] = (),
    dtype: DTypes = None,
    attempt: str = "",
) -> bool:
    """Writes what ``rank`` holds; one of the ranks gets True: then the folder is at its path.

    Arguments and errors are those of ``write_safetensors``; ``arrays`` are torch tensors. The folder is one
    that ``torch.distributed.checkpoint.load`` reads, in any layout.
    """
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.planner import SavePlan

    group = GroupTensors.of(tensors, spec, mapping, ignore, dtype)
    group.check(arrays, rank, ("torch",))
    shared = SharedFolder.of(folder, group.ranks, rank, group.content, attempt)
    parts = list(group.parts(arrays, rank))
    items = [_item(group.forms[name], name, box, at) for at, (name, box, _) in enumerate(parts)]
    writer = FileSystemWriter(shared.partial)
    writer.set_up_storage_writer(is_coordinator=False)
    # The name of a rank's files follows from the position of its plan.
    plans = [SavePlan(items if each == rank else []) for each in range(group.ranks)]
    plan = writer.prepare_global_plan(plans)[rank]
    results = writer.write_data(plan, _Parts([part for _, _, part in parts])).wait()
    chunks = [
        (name, item.tensor_data.chunk) for item, (name, _, _) in zip(items, parts, strict=True)
    ]

    def complete(records: Sequence[bytes]) -> None:
        written = list(map(pickle.loads, records))
        every = [chunk for _, some in written for chunk in some]
        writer.finish(_metadata(group.forms, every), [some for some, _ in written])

    return shared.finish(rank, pickle.dumps((results, chunks)), complete)


class _Parts:
    """Gives DCP the elements of each item: the item's index in the plan is that of its part."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def resolve_data(self, item: Any) -> Any:
        return self._parts[item.index.index].detach()


def _item(form: TensorForm, name: str, box: Box, index: int) -> Any:
    from torch import Size
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    chunk = ChunkStorageMetadata(
        offsets=Size(start for start, _ in box), sizes=Size(stop - start for start, stop in box)
    )
    return WriteItem(
        index=MetadataIndex(name, chunk.offsets, index),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=chunk, properties=_properties(form), size=Size(form.shape)
        ),
    )


def _properties(form: TensorForm) -> Any:
    import torch
    from torch.distributed.checkpoint.metadata import TensorProperties

    return TensorProperties(dtype=getattr(torch, form.dtype))


def _metadata(forms: Mapping[str, TensorForm], chunks: Sequence[tuple[str, Any]]) -> Any:
    from torch import Size
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    by_name: dict[str, list[Any]] = {name: [] for name in forms}
    for name, chunk in chunks:
        by_name[name].append(chunk)
    return Metadata(
        state_dict_metadata={
            name: TensorStorageMetadata(
                properties=_properties(form), size=Size(form.shape), chunks=by_name[name]
            )
            for name, form in forms.items()
        },
        planner_data={name: (name,) for name in forms},
    )
