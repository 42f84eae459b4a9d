"""On a real local Ray: resharding within a group, relative to torch's DTensor over gloo in plain processes.

Both ways turn a float32 matrix that four processes hold by rows into one that they hold by columns, in
alternating pairs; at the end every process has its own contiguous array. The processes of torch are started
once and move on request; their time is from a barrier to a barrier.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, at_most, note, spread

MIB = 1 << 20
WORLD = 4
COLUMNS = 1024
#: Seconds between two measurements, in which Ray frees the moved objects.
PAUSE_S = 0.5
#: Whole numbers below this are exact as float32.
EXACT = 1 << 24


def on_ray_gloo(mib: int = 256, pairs: int = 7) -> list[Row]:
    """Time of a move between layouts on Ray, relative to ``DTensor.redistribute``."""
    if find_spec("torch") is None:
        return [note("reshard relative to DTensor.redistribute", "torch is not installed")]
    rows = mib * MIB // 4 // COLUMNS
    with _on_ray(rows) as ours, _on_gloo(rows) as theirs:
        found = []
        for number in range(pairs + 1):
            sides = (ours, theirs) if number % 2 else (theirs, ours)
            took = {}
            for side in sides:
                took[side] = side()
                time.sleep(PAUSE_S)
            if number:  # the first pair warms up
                found.append((took[ours], took[theirs]))
    ratios = [mine / other for mine, other in found]
    what = f"reshard {mib} MiB of torch float32 within a group, dp=4 rows → tp=4 columns"
    return [
        at_most(
            f"{what}, relative to DTensor.redistribute over gloo in processes: time",
            statistics.median(ratios),
            1.5,
            " ×",
            f"{min(ratios):.2f}-{max(ratios):.2f}, {len(found)} pairs",
        ),
        note("on Ray", spread([mine for mine, _ in found])),
        note("DTensor over gloo", spread([other for _, other in found])),
    ]


@contextlib.contextmanager
def _on_ray(rows: int) -> Iterator[Any]:
    """Yields a function that moves once, and returns the milliseconds."""
    import ray

    from schedulemesh.core import RayScheduler, ShardHolder, WorkerGroup, reshard
    from schedulemesh.dispatch import ParallelLayout, Sharding

    class Worker(ShardHolder):
        def __init__(self, _name: str, labels: dict[str, str]) -> None:
            self.rank = int(labels["rank"])

        def fill(self, rows: int) -> None:
            self.keep_shards({"w": _part(rows, self.rank)}, "w")

        def corner(self, key: str) -> tuple[float, ...]:
            part = self.shards(key)["w"]
            assert part.is_contiguous()
            return float(part[0, 0]), float(part[-1, -1])

        def forget(self) -> None:
            self.keep_shards({}, "columns")

    ray.init(
        address="local",
        num_cpus=WORLD,
        object_store_memory=2_000_000_000,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        scheduler = RayScheduler("benchmark-gloo")
        scheduler.create_pool("workers", resources={"cpu": WORLD})
        source = Sharding.of(ParallelLayout.of(dp=WORLD), dp=0)
        destination = Sharding.of(ParallelLayout.of(tp=WORLD), tp=1)
        options: dict[str, Any] = {"pool": "workers", "resources": {"cpu": 0.5}}
        group = WorkerGroup.submit(scheduler, "g", Worker, layout=source.layout, **options)
        group.call("fill", rows).outputs()

        def move() -> float:
            begun = time.perf_counter()
            reshard(
                group,
                group,
                "w",
                source=source,
                destination=destination,
                into="columns",
                shapes={"w": (rows, COLUMNS)},
            )
            took = (time.perf_counter() - begun) * 1e3
            _check(group.call("corner", "columns").outputs(), rows)
            group.call("forget").outputs()
            return took

        yield move
        scheduler.shutdown()
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _on_gloo(rows: int) -> Iterator[Any]:
    """The same with processes of torch."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.on_ray_gloo", str(rank), str(rows), folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(WORLD)
        ]

        def move() -> float:
            for each in ranks:
                each.stdin.write("move\n")
                each.stdin.flush()
            answers = [json.loads(each.stdout.readline()) for each in ranks]
            _check([answer["corner"] for answer in answers], rows)
            return max(answer["ms"] for answer in answers)

        try:
            yield move
        finally:
            for each in ranks:
                each.communicate(timeout=60)


def _part(rows: int, rank: int) -> Any:
    """The rows of one rank."""
    import torch

    size = rows // WORLD * COLUMNS
    numbers = torch.arange(rank * size, (rank + 1) * size) % EXACT
    return numbers.float().reshape(-1, COLUMNS)


def _check(corners: Any, rows: int) -> None:
    """Check the first and the last element of each rank's columns."""
    wide = COLUMNS // WORLD
    for rank, (first, last) in enumerate(corners):
        expected = (rank * wide, ((rows - 1) * COLUMNS + (rank + 1) * wide - 1) % EXACT)
        if (first, last) != expected:
            raise AssertionError((rank, first, last, expected))


def main() -> None:
    """One process of torch: moves once per line that it reads."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    rank, rows, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), WORLD), rank=rank, world_size=WORLD
    )
    mesh = init_device_mesh("cpu", (WORLD,))
    tensor = DTensor.from_local(_part(rows, rank), mesh, [Shard(0)])
    for _ in sys.stdin:
        dist.barrier()
        begun = time.perf_counter()
        part = tensor.redistribute(placements=[Shard(1)]).to_local().contiguous()
        dist.barrier()
        took = (time.perf_counter() - begun) * 1e3
        corner = (float(part[0, 0]), float(part[-1, -1]))
        print(json.dumps({"ms": took, "corner": corner}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
