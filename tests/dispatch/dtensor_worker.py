"""One rank of a gloo group that answers what DTensor makes of the cases; started by test_dtensor.

``python dtensor_worker.py RANK WORLD FOLDER``: reads cases.json, writes RANK.pt with, for each case, the
local shard and the local shard after ``redistribute``.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def placements(words):
    return [Replicate() if word == "R" else Shard(int(word)) for word in words]


def main(rank, world, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    cases = json.loads((folder / "cases.json").read_text())
    meshes, found = {}, []
    for case in cases:
        size = tuple(case["mesh"])
        if size not in meshes:
            meshes[size] = init_device_mesh("cpu", size)
        shape = case["shape"]
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
        first = distribute_tensor(whole, meshes[size], placements(case["source"]))
        then = first.redistribute(placements=placements(case["destination"]))
        found.append((first.to_local().clone(), then.to_local().clone()))
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
