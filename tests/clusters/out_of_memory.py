"""Agents that take more memory than their node has, on a Ray whose memory monitor is strict; tells as JSON
what became of their tasks, and of the supervisor.

A program of its own, because the memory monitor is configured where Ray is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import ray

from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.simple import SimpleScheduler
from tests.integration.polling import supervisor_of

#: MB above what the machine uses now from which Ray kills workers, and that a hog takes at most. What else
#: runs on the machine may take some of the room: without it Ray would kill the supervisor again and again.
ROOM_MB, HOG_MB = 4500, 9000
_CHUNK_MB = 50


class Hog:
    """Takes memory until it is killed."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self.taken: list[bytearray] = []

    def take(self) -> None:
        """Take memory, all of which is written to."""
        for _ in range(HOG_MB // _CHUNK_MB):
            self.taken.append(bytearray(os.urandom(2**20)) * _CHUNK_MB)
            time.sleep(0.02)  # so that the monitor sees it before the machine is full
        time.sleep(60)  # until it is killed


def memory_mb() -> tuple[float, float]:
    """The memory of this machine, and what of it is available."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return found["MemTotal"], found["MemAvailable"]


def ended(mesh: SimpleScheduler, task_id: str) -> Any:
    """The row of a task that has ended, however long a supervisor that the kernel kills takes to return."""
    while True:
        with contextlib.suppress(SchedulerUnavailableError):
            (row,) = mesh.wait(task_id, timeout=120)["tasks"]
            return row


def main() -> None:
    """Run three hogs, one after the other."""
    total, available = memory_mb()
    threshold = (total - available + ROOM_MB) / total
    ray.init(
        address="local",
        num_cpus=2,
        _memory=16 * 2**30,
        object_store_memory=80_000_000,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        _system_config={
            "memory_monitor_refresh_ms": 100,
            "memory_usage_threshold": threshold,
        },
    )
    mesh = SimpleScheduler("mesh", namespace="space")
    mesh.ensure_pool("pool", resources={"cpu": 2, "memory": 4000})
    told: dict[str, Any] = {"before": supervisor_of("space")}
    for task_id, how in (
        ("lost", {}),
        ("fails", {"on_oom": "fail", "max_retries": 3}),
        ("grows", {"on_oom": "grow", "max_retries": 3, "oom_max_memory": 3000}),
    ):
        mesh.submit(task_id, "pool", Hog, resources={"cpu": 1, "memory": 1000}, run="take", **how)
        row = ended(mesh, task_id)
        told[task_id] = {key: row.get(key) for key in ("state", "reason", "error", "failures")}
    told["after"] = supervisor_of("space")
    score = Path(f"/proc/{told['after']}/oom_score_adj").read_text(encoding="ascii")
    told["oom_score_adj"] = int(score)
    mesh.shutdown()
    ray.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
