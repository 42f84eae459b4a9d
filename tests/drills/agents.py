"""The agent class of the drill. It creates marker files, which show its processes and what they do.

Each process first creates a marker with its process id and start time, so that two processes of one task
are detected independently of the scheduler. The class is pickled by value, so it imports no other module
of this package.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any


def began_at(pid: int) -> str:
    """The start time of a process in clock ticks since boot; empty if it has exited."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


class Marked:
    """A counter whose constructor, methods and ``save_state`` can be made slow."""

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
        self.task_id, self.cancelled = task_id, False
        self.mark("processes", f"{task_id}@{os.getpid()}@{began_at(os.getpid())}")
        self.start_daemon(task_id)
        time.sleep(slow_start_s)  # a slow constructor, so that the agent can be killed in it

    def mark(self, kind: str, name: str) -> None:
        """Create a marker file."""
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    def start_daemon(self, task_id: str) -> None:
        """Start a process that outlives this one unless it is killed, and create a marker for it."""
        script = "env -i setsid sleep 86400 > /dev/null 2>&1 & echo $!"
        started = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True)
        pid = int(started.stdout)
        self.mark("daemons", f"{task_id}@{os.getpid()}@{pid}@{began_at(pid)}")

    def add(self, n: int = 1) -> int:
        """Add to the count and return it."""
        self.count += n
        return self.count

    def work(self, seconds: float) -> None:
        """Be busy for so many seconds; a marker shows that it has begun."""
        self.mark("working", str(os.getpid()))
        time.sleep(seconds)  # the work itself

    def produce(self, seconds: float) -> str | None:
        """Be busy for so many seconds, and return what no other run returns; a marker has it, too."""
        time.sleep(seconds)  # the work itself
        if self.cancelled:
            return None
        token = secrets.token_hex(8)
        self.mark("produced", f"{self.task_id}@{token}")
        return token

    def save_state(self) -> dict[str, int]:
        """The count."""
        self.mark("saving", str(os.getpid()))
        time.sleep(self.slow_save_s)  # a slow save, so that the agent can be killed in it
        return {"count": self.count}

    def restore_state(self, saved: dict[str, int]) -> None:
        """Continue from the saved count."""
        self.count = saved["count"]

    def cancel(self, task_id: str) -> dict[str, Any]:
        """Succeed at once; what it produces is not wanted any more."""
        self.cancelled = True
        return {"success": True}


def slow_preserver(task: Any) -> dict[str, Any]:
    """Save nothing, slowly; the payload is the folder for its marker file."""
    folder = Path(task.payload) / "preserving"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).touch()
    time.sleep(5.0)  # a slow preserver, so that its worker can be killed in it
    return {"task_id": task.task_id}
