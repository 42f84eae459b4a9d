"""What every kind of kill uses: the scheduler, its clients, the checker, and waiting for a moment to kill."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import select

from schedulemesh.core import RayScheduler
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.store.history.schema import progress
from schedulemesh.store.history.tables import FILES, history_engine
from schedulemesh.store.sql import SqlJournal
from tests.drills.acknowledged import Log
from tests.drills.batch_client import POOL
from tests.drills.checker import FAILS_AFTER_S, Checker, time_until_served
from tests.drills.clients import Client, PendingCall, Workload
from tests.drills.processes import (
    DrillFailed,
    until,
)

#: Attempts to find the moment for one kill.
TRIES = 400
#: Seconds within which a reply that was already sent arrives.
REPLY_WITHIN_S = 0.03


class DrillContext:
    """The scheduler, the workload and the checker, with the steps that several kinds of kills share."""

    def __init__(
        self,
        *,
        mesh: RayScheduler,
        namespace: str,
        log: Log,
        folder: Path,
        workload: Workload,
        checker: Checker,
        own: Client,
        rng: random.Random,
    ) -> None:
        self.mesh, self.namespace, self.log, self.folder = mesh, namespace, log, folder
        self.workload, self.checker, self.own, self.rng = workload, checker, own, rng
        self.journal = Path(self.about()["journal"])
        self.drivers = 0
        #: The number of schedulers created beside the workload's.
        self.others = 0

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = self.mesh.about()
        return found

    def supervisor_pid(self) -> int:
        pid: int = self.about()["pid"]
        return pid

    def wait_for_operation(self, operation: str) -> PendingCall:
        self.workload.next_operation = operation
        self.workload.resume()
        try:
            pending: PendingCall = until(
                lambda: self.workload.pending_call(operation),
                f"no client does {operation}",
                FAILS_AFTER_S,
            )
        finally:
            self.workload.next_operation = None
        return pending

    def recovery_time(self, at: float, pid: int) -> float:
        took = time_until_served(self.mesh, at)
        if self.supervisor_pid() == pid:
            raise DrillFailed(f"supervisor {pid} was killed and still answers")
        return took

    def durable(self) -> MeshState:
        """The state in the journal, read from a copy of its files while their writer is stopped."""
        with self._copied() as copy:
            return copy.load().fold()

    def history_lacks(self) -> int:
        """How many durable commits the history lacks, from copies while their writer is stopped."""
        with self._copied() as copy, history_engine(copy.address).connect() as connection:
            upto: int = connection.execute(select(progress.c.upto)).scalar() or 0
            stored = copy.load()
            return stored.base + len(stored.records) - upto

    @contextlib.contextmanager
    def _copied(self) -> Iterator[SqlJournal]:
        """A copy of the journal and its history."""
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("", "-wal", *FILES[:2]):
                name = self.journal.name + suffix
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self.journal.with_name(name), Path(folder) / name)
            copy = SqlJournal(Path(folder) / self.journal.name, must_exist=True)
            try:
                yield copy
            finally:
                copy.close()

    def random_running_agent(self) -> dict[str, Any] | None:
        """One of those whose methods the clients call."""
        agents = self.mesh.list_agents()["agents"]
        running = [a for a in agents if a["state"] == "running" and a["pool"] != POOL]
        return self.rng.choice(running) if running else None

    def wait_until_removed(self, agent: dict[str, Any]) -> None:
        until(
            lambda: agent["pid"] not in {a["pid"] for a in self.mesh.list_agents()["agents"]},
            f"{agent['name']} is dead and still listed",
            FAILS_AFTER_S,
        )

    def record_lost(self, agent: dict[str, Any]) -> None:
        """Log the tasks of a dead agent as lost, and those that a health check rebuilds as rebuilt."""
        self.checker.pause()
        listed_tasks = {task["task_id"] for task in self.mesh.list_tasks()["tasks"]}
        expected = self.checker.expected()
        for task_id in agent["tasks"]:
            if task_id in expected.tasks and task_id not in listed_tasks:
                self.log.write("lost", task=task_id)
        done = self.mesh.ensure_agent_health(timeout=60.0)
        for detail in done["details"]:
            if detail["action"] == "rebuilt":
                for task_id in detail["tasks"] if detail["pool_name"] != POOL else ():
                    self.log.write("rebuilt", task=task_id)
            elif not detail.get("error"):
                raise DrillFailed(f"removed without an error: {detail}")
