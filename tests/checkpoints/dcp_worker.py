"""One rank of a gloo group that saves a model as DTensors; started by test_dcp.

``python dcp_worker.py RANK WORLD FOLDER``: FSDP over tensor parallelism on a mesh of 2 x 2. Saves it with DCP
as ``theirs``, with ``write_dcp`` as ``ours`` and with ``write_safetensors`` as ``files``, and RANK.pt with
what DCP loads from ``ours`` into the same DTensors.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from schedulemesh.checkpoints import describe_dtensors, write_dcp, write_safetensors


def whole_model():
    """The model before it is split, the same in every process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 7), nn.LayerNorm(7))


def main(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), world), rank=rank, world_size=world
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = whole_model()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    state = {name: each for name, each in model.state_dict().items() if not name.startswith("2.")}
    dcp.save(state, checkpoint_id=str(folder / "theirs"))
    found = describe_dtensors(state)
    options = {"tensors": found.tensors}
    write_dcp(folder / "ours", found.arrays, found.spec, rank, **options)
    write_safetensors(folder / "files", found.arrays, found.spec, rank, **options)
    dist.barrier()
    expected = {name: each.to_local().clone() for name, each in state.items()}
    for each in state.values():
        each.to_local().zero_()
    dcp.load(state, checkpoint_id=str(folder / "ours"))
    loaded = {name: each.to_local() for name, each in state.items()}
    torch.save(
        {"expected": expected, "loaded": loaded, "spec": str(found.spec)}, folder / f"{rank}.pt"
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
