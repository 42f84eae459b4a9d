"""On a real local Ray: resharding between two groups, relative to a driver that joins and splits the tensors.

Both ways move the same tree between the same agents, in alternating pairs. Each has a separate driver
process, whose memory growth is measured for each move: the peak of its resident memory (VmHWM of Linux, reset
before each move) minus its resident memory before the first, because the allocator may keep what a move
needed for the next. Mapped pages of the object store count, as they do
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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
COLUMNS = 1024
SOURCE = Sharding.of(ParallelLayout.of(dp=4), dp=0)
DESTINATION = Sharding.of(ParallelLayout.of(tp=4), tp=1)
#: Names of the scheduler and its groups.
NAME, FROM, TO = "benchmark-dispatch", "fsdp", "rollout"
#: Tensors into which the bytes are divided, their library, and the mark for the ratio of times.
TRANSPORTS = ("object_store", "shared_memory")
CASES = ((1, "numpy", 0.3), (64, "numpy", 0.3), (400, "numpy", 0.4), (400, "torch", 0.2))


def on_ray_dispatch(mib: int = 256, pairs: int = 7) -> list[Row]:
    """Time and the driver's peak memory, workers to workers relative to a move through the driver."""
    rows: list[Row] = []
    with _groups() as (source, address):
        for count, library, mark in CASES:
            if find_spec(library) is None:
                continue
            source.call("fill", mib, count, library).outputs()
            for transport in TRANSPORTS:
                with (
                    _driver(transport, address) as ours,
                    _driver("driver", address) as theirs,
                ):
                    found = _alternate(ours, theirs, pairs)
                rows += _case(found, f"{count} × {library}, {transport}", mib, mark)
    return rows


def _case(
    found: list[tuple[tuple[float, float], tuple[float, float]]],
    tensors: str,
    mib: int,
    mark: float,
) -> list[Row]:
    times, peaks = ([[each[i] for each in pair] for pair in found] for i in (0, 1))
    grown = [statistics.median(side) for side in zip(*peaks, strict=True)]
    ratios = [mine / other for mine, other in times]
    what = f"reshard {mib} MiB in {tensors}, dp=4 rows → tp=4 columns, relative to concat on the driver"
    detail = f"{min(ratios):.2f}-{max(ratios):.2f}, {len(found)} pairs"
    shown = [f"{each / MIB:,.1f} MiB" for each in grown]
    return [
        at_most(f"{what}: time", statistics.median(ratios), mark, " ×", detail),
        note("from workers to workers", spread([mine for mine, _ in times])),
        note("through the driver", spread([other for _, other in times])),
        at_most(
            "the same: peak growth of the driver's memory",
            grown[0] / grown[1],
            0.01,
            " ×",
            f"{shown[0]} against {shown[1]}, medians",
        ),
    ]


class Worker(ShardHolder):
    """Holds a tree; ``part`` and ``keep_copy`` are for the move through the driver."""

    def __init__(self, _name: str, labels: dict[str, str]) -> None:
        self.rank = int(labels["rank"])

    def fill(self, mib: int, count: int, library: str) -> None:
        """Rows of matrices with ascending elements: 32-bit integers, or bfloat16 bits of them."""
        size = mib * MIB // 4 // count // 4 // COLUMNS * COLUMNS
        values = np.arange(self.rank * size, (self.rank + 1) * size, dtype=np.int32)
        self.keep_shards({str(n): _tensor(values + n, library) for n in range(count)}, "w")

    def part(self) -> Any:
        return self.shards("w")

    def keep_copy(self, part: Any) -> None:
        copied = {n: _copied(array) for n, array in part.items()}
        self.keep_shards(copied, "w")

    def corners(self) -> list[Any]:
        tree = self.shards("w")
        return [
            _bits(array[at]) for array in (tree["0"], tree[str(len(tree) - 1)]) for at in CORNERS
        ]


CORNERS = ((0, 0), (0, -1), (-1, 0), (-1, -1))


def _tensor(values: np.ndarray, library: str) -> Any:
    if library == "numpy":
        return values.reshape(-1, COLUMNS)
    import torch

    return torch.from_numpy(values).view(torch.bfloat16).reshape(-1, COLUMNS)


def _copied(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def _bits(element: Any) -> int:
    """The bits of one element."""
    if isinstance(element, np.generic):
        return int(element)
    import torch

    return int(element.view(torch.int16))


@contextlib.contextmanager
def _groups() -> Iterator[tuple[WorkerGroup, str]]:
    """A separate local Ray with both groups on it; yields the source and Ray's address."""
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
        yield source, context.address_info["gcs_address"]
        scheduler.shutdown()
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _driver(way: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """A process that moves the tree in one way, once per line that it reads."""
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
    held = source.call("describe_shards", "w", False).outputs()[0]
    shapes = {path[0]: (4 * form.shape[0], COLUMNS) for path, form in held.forms.items()}
    move = _by_driver if way == "driver" else partial(_from_workers, way)
    before = _memory("VmRSS")
    for _ in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")
        start = time.perf_counter()
        move(source, destination, shapes)
        took = (time.perf_counter() - start) * 1e3
        grown = _memory("VmHWM") - before
        _check(destination, source)
        print(json.dumps([took, grown]), flush=True)


def _from_workers(
    transport: Any, source: WorkerGroup, destination: WorkerGroup, shapes: Any
) -> None:
    reshard(
        source,
        destination,
        "w",
        source=SOURCE,
        destination=DESTINATION,
        shapes=shapes,
        transport=transport,
    )


def _by_driver(source: WorkerGroup, destination: WorkerGroup, _shapes: Any) -> None:
    """An efficient manual implementation: one object per destination, nothing is copied twice."""
    parts = ray.get([handle.part.remote() for handle in source.handles])
    refs = []
    whole = {name: _joined([part[name] for part in parts]) for name in parts[0]}
    for rank in destination.ranks:
        columns = slice(rank * COLUMNS // 4, (rank + 1) * COLUMNS // 4)
        refs.append(ray.put({name: _cut(array, columns) for name, array in whole.items()}))
    ray.get(
        [
            handle.keep_copy.remote(ref)
            for handle, ref in zip(destination.handles, refs, strict=True)
        ]
    )


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


def _cut(array: Any, columns: slice) -> Any:
    part = array[:, columns]
    return np.ascontiguousarray(part) if isinstance(array, np.ndarray) else part.contiguous()


def _check(destination: WorkerGroup, source: WorkerGroup) -> None:
    """Check corners of what the destination holds against those of the source."""
    corners = source.call("corners").outputs()
    found = destination.call("corners").outputs()
    for at in (0, 4):
        expected = [corners[0][at], corners[0][at + 1], corners[3][at + 2], corners[3][at + 3]]
        given = [found[0][at], found[3][at + 1], found[0][at + 2], found[3][at + 3]]
        if given != expected:
            raise AssertionError((given, expected))
    destination.call("keep_shards", {}, "w").outputs()


def _memory(field: str) -> int:
    """Memory of this process in bytes, from Linux's process status."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{field} is not available on this system")


if __name__ == "__main__":
    main()
