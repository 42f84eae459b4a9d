"""Failures of the journal's disk, and kills of the supervisor during them. See ``kill_supervisor``."""

from __future__ import annotations

import contextlib
import itertools
import resource
import time
from typing import Any

from tests.drills.checker import FAILS_AFTER_S, time_until_served
from tests.drills.disk import Disk
from tests.drills.drill_context import REPLY_WITHIN_S, DrillContext
from tests.drills.processes import DrillFailed, kill, stopped, until


class DiskFaults(DrillContext):
    """The disk is full, is read-only, or contains garbage."""

    #: The journal's own disk; None: this machine does not allow one.
    disk: Disk | None = None
    _sizes = itertools.count(1)

    def garbage(self) -> float | None:
        """The supervisor is killed during a submission, and random bytes are appended to its journal."""
        pid = self.supervisor_pid()
        pending = self.wait_for_operation("submit")
        time.sleep(self.rng.uniform(0.0, 0.1))  # the kill comes at a random moment
        with stopped(pid):
            if pending.answered.wait(REPLY_WITHIN_S):
                return None
            for path in (self.journal, self.journal.with_name(self.journal.name + "-wal")):
                with path.open("ab") as file:
                    file.write(self.rng.randbytes(self.rng.randrange(1, 9000)))
            at = kill(pid)
        return self.recovery_time(at, pid)

    def disk_full(self) -> float | None:
        """No file of the supervisor can grow for a while: changes are refused, reads are answered."""
        pid = self.supervisor_pid()
        with self._full(pid):
            self._refuses()
        return time_until_served(self.mesh, time.monotonic())

    def disk_full_and_killed(self) -> float | None:
        """As ``disk_full``; the supervisor is killed while a change is pending or was just refused."""
        pid = self.supervisor_pid()
        with self._full(pid):
            self._refuses()
            self.wait_for_operation("submit")
            at = kill(pid)
        return self.recovery_time(at, pid)

    def disk_read_only(self) -> float | None:
        """The file system becomes read-only, as after an error of its device: changes are refused, reads are
        answered. The supervisor is killed while a change is pending or was just refused, and the disk is
        repaired.
        """
        if self.disk is None:
            raise DrillFailed("the journal has no disk of its own")
        pid = self.supervisor_pid()
        self.wait_for_operation("submit")
        self.disk.give_up()
        self._refuses()
        self.wait_for_operation("submit")
        at = kill(pid)
        self.disk.mend()
        return self.recovery_time(at, pid)

    @contextlib.contextmanager
    def _full(self, pid: int) -> Any:
        """Limit the size of every file that this process writes to a few bytes."""
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        self.wait_for_operation("submit")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def _refuses(self) -> None:
        def refused() -> bool:
            # a size that differs from the last one: an unchanged pool is not a change
            answer = self.mesh.ensure_pool("full", resources={"memory": next(self._sizes)})
            return answer.get("reason") == "journal_unavailable"

        until(refused, "changes are not refused", FAILS_AFTER_S)
        for _ in range(100):
            if not refused():
                raise DrillFailed("a change is accepted while the disk is full")
        if not self.mesh.list_pools()["success"]:
            raise DrillFailed("reads are refused while the disk is full")
