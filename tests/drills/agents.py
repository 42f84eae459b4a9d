"""What the drill's agents run: it leaves marks in a folder, so that others see who lives and what it does.

Each process marks itself before it does anything else, with its id and the time at which it began, so
that two processes of one task are found whatever the scheduler says. Sent by value, so it imports
nothing of its neighbours.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any


def began_at(pid: int) -> str:
    """When a process began, in ticks since the machine did; empty: it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


class Marked:
    """Counts; every stage of it can be made to last."""

    def __init__(
        self,
        name: str,
        labels: dict[str, str],
        task_id: str,
        folder: str,
        slow_start_s: float = 0.0,
        slow_save_s: float = 0.0,
    ) -> None:
        self.folder, self.slow_save_s, self.count = Path(folder), slow_save_s, 0
        self.mark("lives", f"{task_id}@{os.getpid()}@{began_at(os.getpid())}")
        self.start_daemon(task_id)
        time.sleep(slow_start_s)  # a constructor that takes its time, to be killed in

    def mark(self, kind: str, name: str) -> None:
        """Leave a file."""
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    def start_daemon(self, task_id: str) -> None:
        """Start a process that outlives this one unless somebody ends it, and mark it."""
        script = "env -i setsid sleep 86400 > /dev/null 2>&1 & echo $!"
        told = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True)
        pid = int(told.stdout)
        self.mark("daemons", f"{task_id}@{os.getpid()}@{pid}@{began_at(pid)}")

    def add(self, n: int = 1) -> int:
        """The count, after adding to it."""
        self.count += n
        return self.count

    def work(self, seconds: float) -> None:
        """Be busy; a mark tells that it began."""
        self.mark("works", str(os.getpid()))
        time.sleep(seconds)  # the work itself

    def save_state(self) -> dict[str, int]:
        """The count."""
        self.mark("saves", str(os.getpid()))
        time.sleep(self.slow_save_s)  # a save that takes its time, to be killed in
        return {"count": self.count}

    def restore_state(self, saved: dict[str, int]) -> None:
        """Count on from there."""
        self.count = saved["count"]

    def cancel(self, task_id: str) -> dict[str, Any]:
        """There is nothing to stop."""
        return {"success": True}


def slow_preserver(task: Any) -> dict[str, Any]:
    """Save nothing, slowly; the payload says where to leave a mark."""
    folder = Path(task.payload) / "preserves"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).touch()
    time.sleep(5.0)  # a preserver that takes its time, to be killed in
    return {"task_id": task.task_id}
