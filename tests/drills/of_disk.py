"""Kills of the journal's disk, and of the supervisor with it. See of_supervisor."""

from __future__ import annotations

import contextlib
import resource
import time
from typing import Any

from tests.drills.disk import Disk
from tests.drills.judge import GIVES_UP_S, served_again
from tests.drills.processes import DrillFailed, kill, stopped, until
from tests.drills.stage import ARRIVES_S, Stage


class OfDisk(Stage):
    """The disk is full, cannot be written any more, or has rubbish on it."""

    #: The journal's own disk; None: none could be had.
    disk: Disk | None = None

    def garbage(self) -> float | None:
        """In mid-submit, and what it wrote last has rubbish behind it when it comes back."""
        pid = self.supervisor_pid()
        doing = self.awaited("submit")
        time.sleep(self.rng.uniform(0.0, 0.1))  # the kill comes at a random moment
        with stopped(pid):
            if doing.answered.wait(ARRIVES_S):
                return None
            for path in (self.journal, self.journal.with_name(self.journal.name + "-wal")):
                with path.open("ab") as file:
                    file.write(self.rng.randbytes(self.rng.randrange(1, 9000)))
            at = kill(pid)
        return self.served_after(at, pid)

    def disk_full(self) -> float | None:
        """No file of the supervisor may grow for a while: changes are refused, reads go on."""
        pid = self.supervisor_pid()
        with self._full(pid):
            self._refuses()
        return served_again(self.mesh, time.monotonic())

    def disk_full_and_killed(self) -> float | None:
        """As disk_full, and it dies of it while a change is under way or just refused."""
        pid = self.supervisor_pid()
        with self._full(pid):
            self._refuses()
            self.awaited("submit")
            at = kill(pid)
        return self.served_after(at, pid)

    def disk_read_only(self) -> float | None:
        """The file system gives up writing, as after an error of its device: changes are refused, reads go
        on. The supervisor dies of it while a change is under way or just refused, and the disk is mended.
        """
        if self.disk is None:
            raise DrillFailed("the journal has no disk of its own")
        pid = self.supervisor_pid()
        self.awaited("submit")
        self.disk.give_up()
        self._refuses()
        self.awaited("submit")
        at = kill(pid)
        self.disk.mend()
        return self.served_after(at, pid)

    @contextlib.contextmanager
    def _full(self, pid: int) -> Any:
        """No file that this process writes may grow beyond a few bytes."""
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        self.awaited("submit")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def _refuses(self) -> None:
        def refused() -> bool:
            self._numbers = getattr(self, "_numbers", 0) + 1
            answer = self.mesh.ensure_pool("full", resources={"memory": self._numbers})
            return answer.get("reason") == "journal_unavailable"

        until(refused, "changes are not refused", GIVES_UP_S)
        for _ in range(100):
            if not refused():
                raise DrillFailed("a change is accepted while the disk is full")
        if not self.mesh.list_pools()["success"]:
            raise DrillFailed("reads are refused while the disk is full")
