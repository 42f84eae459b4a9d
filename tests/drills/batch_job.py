"""The driver of the drills' jobs: it counts steps, saves them, and fails in its own way.

    python -m tests.drills.batch_job KIND FOLDER STEPS SLOW_S

It makes the same markers as ``batch.Task``, with the number of the attempt, which a driver knows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path

from schedulemesh import job
from tests.drills.agents import began_at

#: The exit codes of drivers that fail by themselves: their run does, or their checkpoint cannot be used.
EXIT_CODES = {"run raises": 7, "restore raises": 8}
#: Steps after which a checkpoint is written.
_EACH = 20


class Driver:
    """One attempt of a job."""

    def __init__(self, kind: str, folder: str, steps: str, slow_s: str) -> None:
        self.kind, self.folder = kind, Path(folder)
        self.steps, self.slow_s = int(steps), float(slow_s)
        self.process, self.step = job.task_id() or "", 0
        self.saved = Path(job.checkpoint_dir() or "") / "step"
        self.here = f"{self.process}@{os.getpid()}@@{job.attempt()}"

    def mark(self, kind: str, name: str) -> None:
        """Create a marker file."""
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    def run(self) -> None:
        """The whole attempt."""
        self.mark("processes", f"{self.process}@{os.getpid()}@{began_at(os.getpid())}")
        self.mark("starting", self.here)
        time.sleep(self.slow_s)  # a slow start, so that it can be killed in it
        self.restore()
        self.mark("working", self.here)
        began = self.step
        while self.step < self.steps:
            time.sleep(0.05)  # the work itself
            self.step += 1
            if self.kind != "no save" and job.preempted():
                self.leave_in_time()
            if self.kind in ("good", "saves too much") and self.step % _EACH == 0:
                self.save()
        if self.kind == "run raises":
            self.exit(EXIT_CODES[self.kind])
        self.mark("produced", f"{self.process}@{job.attempt()}@{began}")
        self.exit(0)

    def restore(self) -> None:
        """Continue from the saved step."""
        if not self.saved.exists():
            return
        self.step = int(self.saved.read_text(encoding="utf-8"))
        self.mark("restored", f"{self.process}@{os.getpid()}@{self.step}")
        if self.kind == "restore raises":
            self.exit(EXIT_CODES[self.kind])

    def leave_in_time(self) -> None:
        """Save and exit, or what this kind does instead."""
        self.mark("saving", f"{self.here}@{secrets.token_hex(4)}")
        time.sleep(min(self.slow_s, 0.5))  # a slow save, so that it can be killed in it
        match self.kind:
            case "save raises":
                self.exit(5)
            case "save hangs":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(60)  # longer than it may
            case "save dies":
                os.kill(os.getpid(), signal.SIGKILL)
        self.save()
        self.exit(3)

    def save(self) -> None:
        """Write a checkpoint, whole or not at all; its disk may be full or read-only."""
        made = self.saved.parents[1] / f"step.{os.getpid()}"
        with contextlib.suppress(OSError):
            made.write_text(str(self.step), encoding="utf-8")
            # Before it can be found by the next attempt, which may begin at any moment.
            self.mark("saved", f"{self.process}@{os.getpid()}@{self.step}@{secrets.token_hex(4)}")
            made.replace(self.saved)

    def exit(self, code: int) -> None:
        """Say how the driver ends, and end."""
        self.mark("exits", f"{self.process}@{job.attempt()}@{code}")
        sys.exit(code)


if __name__ == "__main__":
    Driver(*sys.argv[1:]).run()
