"""PyTorch as oracle: DTensor on a DeviceMesh of four real gloo processes."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from schedulemesh.dispatch import (
    ParallelLayout,
    Replicate,
    Shard,
    Sharding,
    apply_plan,
    plan,
    shard,
)

torch = pytest.importorskip(
    "torch", reason="torch is not installed: there is no DTensor to compare with"
)

WORLD = 4
SHAPES = ((8, 4), (5, 7), (3, 2))
#: "R" replicates along a dim of the mesh, a digit shards that dim of the tensor.
WORDS = {1: list(product("01R")), 2: list(product("01R", repeat=2))}


def cases():
    for mesh in ((4,), (2, 2)):
        for shape, source, destination in product(SHAPES, WORDS[len(mesh)], WORDS[len(mesh)]):
            yield {"mesh": mesh, "shape": shape, "source": source, "destination": destination}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """For each rank, for each case, its local shard before and after ``redistribute``."""
    folder = tmp_path_factory.mktemp("dtensor")
    (folder / "cases.json").write_text(json.dumps(list(cases())))
    worker = str(Path(__file__).with_name("dtensor_worker.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), str(WORLD), str(folder)], env=environment
        )
        for rank in range(WORLD)
    ]
    try:
        assert [each.wait(timeout=120) for each in ranks] == [0] * WORLD
    finally:
        for each in ranks:
            each.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def same(mine, theirs):
    """Equal in shape and elements; of nothing DTensor does not always keep the shape."""
    return torch.equal(mine, theirs) or mine.numel() == theirs.numel() == 0


def sharding(mesh, words):
    """The mesh's last dim is the fastest, its first one cuts first."""
    names = ["outer", "inner"][: len(mesh)]
    layout = ParallelLayout.of("-".join(reversed(names)), **dict(zip(names, mesh, strict=True)))
    placements = [Replicate() if word == "R" else Shard(int(word), "chunk") for word in words]
    return Sharding.of(layout, **dict(zip(names, placements, strict=True)))


def test_local_shards_and_redistributed_ones_are_dtensors(answers):
    checked = 0
    for number, case in enumerate(cases()):
        shape = case["shape"]
        whole = torch.arange(shape[0] * shape[1]).reshape(shape)
        source, destination = (
            sharding(case["mesh"], case[side]) for side in ("source", "destination")
        )
        first = shard(whole, source).parts
        then = apply_plan(plan(source, destination, shape, destination_workers=range(WORLD)), first)
        for rank in range(WORLD):
            before, after = answers[rank][number]
            assert same(first[rank], before), (case, rank)
            assert same(then[rank], after), (case, rank)
            checked += 1
    assert checked == WORLD * (3 * 9 + 3 * 81)
