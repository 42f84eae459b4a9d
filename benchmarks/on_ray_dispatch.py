"""On a real local Ray: resharding between two groups, relative to a driver that joins and splits the tensor.

Both ways move the same tensor between the same agents, in alternating pairs. Each has a separate driver
process, whose memory growth is measured for each move: the peak of its resident memory (VmHWM of Linux, reset
before each move) minus its resident memory just before. Mapped pages of the object store count, as they do
for a memory limit on the process. In both cases the destination's workers finally hold their own arrays.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ray

from benchmarks.rows import Row, at_most, note, spread
from schedulemesh.core import RayScheduler, ShardHolder, WorkerGroup, reshard
from schedulemesh.dispatch import ParallelLayout, Sharding

MIB = 1 << 20
CPUS = 4
OBJECT_STORE = 2_000_000_000
#: Seconds between two measurements, in which Ray frees the moved objects.
PAUSE_S = 0.5
COLUMNS = 8192
SOURCE = Sharding.of(ParallelLayout.of(dp=4), dp=0)
DESTINATION = Sharding.of(ParallelLayout.of(tp=2, dp=2), tp=1)
#: Names of the scheduler and its groups.
NAME, FROM, TO = "benchmark-dispatch", "fsdp", "rollout"


def on_ray_dispatch(mib: int = 256, pairs: int = 9) -> list[Row]:
    """Time and the driver's peak memory, workers to workers relative to a move through the driver."""
    with (
        _groups(mib) as address,
        _driver("workers", address) as ours,
        _driver("driver", address) as theirs,
    ):
        found = _alternate(ours, theirs, pairs)
    times, peaks = ([[each[i] for each in pair] for pair in found] for i in (0, 1))
    grown = [statistics.median(side) for side in zip(*peaks, strict=True)]
    ratios = [mine / other for mine, other in times]
    what = f"reshard {mib} MiB, dp=4 rows → tp=2, dp=2 columns, relative to concat and split on the driver"
    detail = f"{min(ratios):.2f}-{max(ratios):.2f}, {pairs} pairs"
    shown = [f"{each / MIB:,.1f} MiB" for each in grown]
    return [
        at_most(f"{what}: time", statistics.median(ratios), 0.6, " ×", detail),
        note("from workers to workers", spread([mine for mine, _ in times])),
        note("through the driver", spread([other for _, other in times])),
        at_most(
            "the same: peak growth of the driver's memory",
            grown[0] / grown[1],
            0.1,
            " ×",
            f"{shown[0]} against {shown[1]}, medians",
        ),
    ]


class Worker(ShardHolder):
    """Holds a part; ``part`` and ``keep_copy`` are for the move through the driver."""

    def __init__(self, _name: str, labels: dict[str, str]) -> None:
        self.rank = int(labels["rank"])

    def fill(self, mib: int) -> None:
        """Rows of a matrix with ascending elements."""
        size = mib * MIB // 4 // 4
        start = self.rank * size
        values = np.arange(start, start + size, dtype=np.int32)
        self.keep_shards(values.reshape(-1, COLUMNS), "w")

    def part(self) -> np.ndarray:
        return self.shards("w")

    def keep_copy(self, part: np.ndarray) -> None:
        self.keep_shards(part.copy(), "w")

    def corners(self) -> list[int]:
        array = self.shards("w")
        return [int(array[at]) for at in ((0, 0), (0, -1), (-1, 0), (-1, -1))]


@contextlib.contextmanager
def _groups(mib: int) -> Iterator[str]:
    """A separate local Ray with both groups on it; yields its address."""
    context = ray.init(
        address="local",
        num_cpus=CPUS,
        object_store_memory=OBJECT_STORE,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        scheduler = RayScheduler(NAME)
        scheduler.create_pool("workers", resources={"cpu": CPUS})
        options = {"pool": "workers", "resources": {"cpu": 0.5}}
        source = WorkerGroup.submit(scheduler, FROM, Worker, layout=SOURCE.layout, **options)
        WorkerGroup.submit(scheduler, TO, Worker, layout=DESTINATION.layout, **options)
        source.call("fill", mib).outputs()
        yield context.address_info["gcs_address"]
        scheduler.shutdown()
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _driver(way: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """A process that moves the tensor in one way, once per line that it reads."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.on_ray_dispatch", way, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.communicate(timeout=60)


def _moved(process: subprocess.Popen[str]) -> tuple[float, float]:
    """One move: milliseconds, and by how many bytes the driver's memory grew at its peak."""
    process.stdin.write("move\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the driver ended with status {process.wait()}")
    took, grown = json.loads(line)
    return took, grown


def _alternate(ours, theirs, pairs: int) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The moves of both ways in pairs; the ways take turns to go first. One additional pair warms up."""
    found = []
    for number in range(pairs + 1):
        moves = {}
        for side in (ours, theirs) if number % 2 else (theirs, ours):
            moves[side] = _moved(side)
            time.sleep(PAUSE_S)
        if number:
            found.append((moves[ours], moves[theirs]))
    return found


def main() -> None:
    """One driver: moves once per line that it reads, and prints time and memory."""
    way, address = sys.argv[1:]
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    scheduler = RayScheduler.attach(NAME)
    source, destination = (
        WorkerGroup.of_agents(scheduler, name, [f"{name}-{rank}" for rank in range(4)], each.layout)
        for name, each in ((FROM, SOURCE), (TO, DESTINATION))
    )
    move = {"workers": _from_workers, "driver": _by_driver}[way]
    for _ in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        start = time.perf_counter()
        move(source, destination)
        took = (time.perf_counter() - start) * 1e3
        grown = _memory("VmHWM") - before
        _check(destination, source)
        print(json.dumps([took, grown]), flush=True)


def _from_workers(source: WorkerGroup, destination: WorkerGroup) -> None:
    reshard(source, destination, "w", source=SOURCE, destination=DESTINATION)


def _by_driver(source: WorkerGroup, destination: WorkerGroup) -> None:
    """An efficient manual implementation: replicas share one object, nothing is copied twice."""
    whole = np.concatenate(ray.get([handle.part.remote() for handle in source.handles]))
    columns = [np.ascontiguousarray(each) for each in np.split(whole, 2, axis=1)]
    refs = [ray.put(each) for each in columns]
    layout = destination.layout
    ray.get(
        [
            handle.keep_copy.remote(refs[layout.coordinates(rank)["tp"]])
            for rank, handle in enumerate(destination.handles)
        ]
    )


def _check(destination: WorkerGroup, source: WorkerGroup) -> None:
    """Check the corners of what the destination holds against those of the whole tensor."""
    corners = source.call("corners").outputs()
    last = corners[-1][2]
    half = COLUMNS // 2
    for rank, found in enumerate(destination.call("corners").outputs()):
        left = half * destination.layout.coordinates(rank)["tp"]
        expected = [left, left + half - 1, last + left, last + left + half - 1]
        if found != expected:
            raise AssertionError((rank, found, expected))
    destination.call("keep_shards", None, "w").outputs()


def _memory(field: str) -> int:
    """Memory of this process in bytes, from Linux's process status."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{field} is not available on this system")


if __name__ == "__main__":
    main()
