"""What every kind of kill needs: the scheduler, its clients, and how to find and check a moment."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from schedulemesh.core import RayScheduler
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.store.sql import SqlJournal
from tests.drills.acknowledged import Expected, Log
from tests.drills.clients import Client, Doing, Workload
from tests.drills.judge import GIVES_UP_S, REST_S, Judge, served_again
from tests.drills.processes import (
    DrillFailed,
    until,
)

#: Tries to find the moment of one kill.
TRIES = 400
#: A reply that is on its way arrives within this.
ARRIVES_S = 0.03


class Stage:
    """All that a kill needs."""

    def __init__(
        self,
        *,
        mesh: RayScheduler,
        namespace: str,
        log: Log,
        folder: Path,
        workload: Workload,
        judge: Judge,
        own: Client,
        rng: random.Random,
    ) -> None:
        self.mesh, self.namespace, self.log, self.folder = mesh, namespace, log, folder
        self.workload, self.judge, self.own, self.rng = workload, judge, own, rng
        self.journal = Path(self.about()["journal"])
        self.drivers = 0
        #: Schedulers made beside the workload's.
        self.others = 0

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = self.mesh.about()
        return found

    def supervisor_pid(self) -> int:
        pid: int = self.about()["pid"]
        return pid

    def awaited(self, operation: str) -> Doing:
        self.workload.wanted = operation
        self.workload.go()
        try:
            doing: Doing = until(
                lambda: self.workload.under_way(operation), f"no client does {operation}", REST_S
            )
        finally:
            self.workload.wanted = None
        return doing

    def served_after(self, at: float, pid: int) -> float:
        took = served_again(self.mesh, at)
        if self.supervisor_pid() == pid:
            raise DrillFailed(f"supervisor {pid} was killed and answers")
        return took

    def durable(self) -> MeshState:
        """The state that the journal's files tell: a copy of them, while their writer is stopped."""
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("", "-wal"):
                name = self.journal.name + suffix
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self.journal.with_name(name), Path(folder) / name)
            copy = SqlJournal(Path(folder) / self.journal.name, must_exist=True)
            try:
                return copy.load().fold()
            finally:
                copy.close()

    def any_running(self) -> dict[str, Any] | None:
        agents = [a for a in self.mesh.list_agents()["agents"] if a["state"] == "running"]
        return self.rng.choice(agents) if agents else None

    def is_off_the_book(self, agent: dict[str, Any]) -> None:
        until(
            lambda: agent["pid"] not in {a["pid"] for a in self.mesh.list_agents()["agents"]},
            f"{agent['name']} is dead and stays on the book",
            GIVES_UP_S,
        )

    def settle_lost(self, agent: dict[str, Any]) -> None:
        """What died and was not ended otherwise is lost, and may be made again where there is room."""
        self.judge.rest()
        on_book = {task["task_id"] for task in self.mesh.list_tasks()["tasks"]}
        expected = Expected(self.log.read())
        for task_id in agent["tasks"]:
            if task_id in expected.tasks and task_id not in on_book:
                self.log.write("lost", task=task_id)
        done = self.mesh.ensure_agent_health(timeout=60.0)
        for detail in done["details"]:
            if detail["action"] == "rebuilt":
                for task_id in detail["tasks"]:
                    self.log.write("rebuilt", task=task_id)
            elif not detail.get("error"):
                raise DrillFailed(f"removed without a word: {detail}")
