"""How fast the simulator runs public traces under the recommended policy, in processor time.

It needs the folder of public traces in the environment variable SCHEDULEMESH_TRACES; without it nothing is
measured.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.rows import Row, at_least, at_most, note, spread
from schedulemesh.sim import read_nodes, read_policy, read_trace, simulate
from schedulemesh.sim.cluster import NodeKind

_POLICIES = Path(__file__).parent.parent / "examples" / "policies"
_ROUNDS = 5
_PHILLY_JOBS = 6_000
_PHILLY_NODES = 45


class Speed(NamedTuple):
    """What one simulation cost."""

    jobs: int
    cpu_s: float
    memory_mb: float

    @property
    def rate(self) -> float:
        """Jobs per second of processor time."""
        return self.jobs / self.cpu_s


def simulating() -> list[Row]:
    """Each simulation in a new process, so that memory is its own."""
    folder = os.environ.get("SCHEDULEMESH_TRACES", "")
    if not folder:
        return [note("simulating", "SCHEDULEMESH_TRACES does not name the folder of public traces")]
    rounds = [_apart(folder, "helios_philly_dev", "") for _ in range(_ROUNDS)]
    rates = [found.rate for found in rounds]
    every = _apart(folder, "philly_vc", "philly_vc")
    some = _apart(folder, "philly_vc", "philly_vc", _PHILLY_JOBS, _PHILLY_NODES)
    name = f"simulate {every.jobs:,} jobs of 13 virtual clusters on 132 nodes, policy las"
    return [
        at_least(
            f"simulate {rounds[0].jobs:,} jobs of two months on 48 nodes, policy las",
            statistics.median(rates),
            2_000,
            " jobs/s",
            spread(rates, ""),
        ),
        at_most(name, every.cpu_s, 90, " s"),
        at_most("  its resident memory", every.memory_mb, 2_048, " MB"),
        note(
            f"  the first {_PHILLY_JOBS:,} of them on {_PHILLY_NODES} nodes, where tasks wait",
            f"{some.rate:,.0f} jobs/s",
        ),
    ]


def _apart(folder: str, trace: str, policy: str, count: int | None = None, nodes: int = 0) -> Speed:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (folder, trace, policy, count, nodes))


def measured(folder: str, trace: str, policy: str, count: int | None, nodes: int) -> Speed:
    """The first ``count`` jobs of a trace (None: all) under the policy las of this folder of examples, on the
    nodes there, or on as many as ``nodes`` says.
    """
    jobs = read_trace(Path(folder) / f"{trace}.csv.gz")[:count]
    kinds = read_nodes(_POLICIES / policy / "nodes.csv")
    if nodes:
        kinds = [NodeKind(count=nodes, gpu=8)]
    las = read_policy(_POLICIES / policy / "las.yaml")
    began = time.process_time()
    simulate(jobs, kinds, las)
    took = time.process_time() - began
    return Speed(len(jobs), took, psutil.Process().memory_info().rss / 2**20)
