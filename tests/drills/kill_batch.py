"""Kills of the processes of jobs, gangs and arrays, and of the supervisor with them.

See ``kill_supervisor`` for the results.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from tests.drills.agents import began_at
from tests.drills.batch_client import FOLDER, BatchClient
from tests.drills.checker import FAILS_AFTER_S, time_until_served
from tests.drills.drill_context import DrillContext
from tests.drills.processes import DrillFailed, agent_processes, kill, marks, stopped, until

#: Steps of a task whose process is to be killed: more than it takes in the meantime.
_STEPS = 60


class BatchKills(DrillContext):
    """A process of a job, of a gang or of a member of an array is killed."""

    #: Submits the tasks whose processes are killed.
    batch: BatchClient

    def driver_of_a_job(self) -> float | None:
        """The driver is killed: that is a failure of its attempt, and another one follows."""
        return self._kill_process("job")

    def member_of_a_gang(self) -> float | None:
        """A member is killed: the other one ends, and both are started again."""
        return self._kill_process("gang")

    def member_of_an_array(self) -> float | None:
        """The process of a member is killed: that member alone is started again."""
        return self._kill_process(self.rng.choice(("array", "jobs")))

    def runner_of_a_job(self) -> float | None:
        """The runner of a driver is killed: the driver ends with it, before the next attempt begins."""
        task_id = self._submitted("job")
        process, driver = self._at_work(task_id)
        agent = self._agent_of(task_id)
        if agent is None or not began_at(driver):
            return None
        with stopped(agent["pid"]):
            if not began_at(driver):
                return None
            at = self._kill(process, agent["pid"])
        self._wait_for_the_next(process, driver)
        return time_until_served(self.mesh, at)

    def supervisor_and_batch(self) -> float | None:
        """The supervisor is killed, and a process of a job, a gang or an array at the same time."""
        process, victim = self._at_work(self._submitted(self.rng.choice(("job", "gang", "array"))))
        pid = self.supervisor_pid()
        with stopped(pid):
            if self._kill_at_work(process, victim) is None:
                return None
            at = kill(pid)
        took = self.recovery_time(at, pid)
        self._wait_for_the_next(process, victim)
        return took

    def _kill_process(self, shape: str) -> float | None:
        process, pid = self._at_work(self._submitted(shape))
        time.sleep(self.rng.uniform(0.0, 0.5))  # the kill comes at a random moment
        at = self._kill_at_work(process, pid)
        if at is None:
            return None
        self._wait_for_the_next(process, pid)
        return time_until_served(self.mesh, at)

    def _kill_at_work(self, process: str, pid: int) -> float | None:
        """Kill a process of a task in its first attempt, unless its work is done; returns when."""
        with contextlib.suppress(ProcessLookupError), stopped(pid):
            done = {mark.partition("@")[0] for mark in marks(self.folder / FOLDER, "produced")}
            return None if process in done else self._kill(process, pid)
        return None

    def _kill(self, process: str, pid: int) -> float:
        """Kill a process of a task, whose attempt ends with it; returns when."""
        self.log.write("batch killed", task=process.partition("#")[0])
        return kill(pid)

    def _submitted(self, shape: str) -> str:
        """A new task of this shape that does nothing wrong itself."""
        answer = self.batch.submit_batch(shape, "good", _STEPS)
        if not answer["success"]:
            raise DrillFailed(f"refused: {answer}")
        task_id: str = answer["task_id"]
        return task_id

    def _at_work(self, task_id: str) -> tuple[str, int]:
        """A process of a task that works, and its id."""

        def working() -> list[tuple[str, int]]:
            living = agent_processes(self.folder / FOLDER)
            at_work = {
                tuple(mark.split("@")[:2]) for mark in marks(self.folder / FOLDER, "working")
            }
            return [
                (process, pid)
                for process, pids in living.items()
                for pid in pids
                if process.partition("#")[0].partition("[")[0] == task_id
                and (process, str(pid)) in at_work
            ]

        return self.rng.choice(
            until(working, lambda: f"never works: {self.mesh.explain(task_id)}", FAILS_AFTER_S)
        )

    def _agent_of(self, task_id: str) -> dict[str, Any] | None:
        agents = [a for a in self.mesh.list_agents()["agents"] if task_id in a["tasks"]]
        return agents[0] if agents else None

    def _wait_for_the_next(self, process: str, pid: int) -> None:
        """Wait until the task of a killed process runs again, or has ended."""
        task_id = process.partition("#")[0]

        def runs_again() -> bool:
            living = agent_processes(self.folder / FOLDER).get(process, [pid])
            return living != [pid] or not self.mesh.wait(task_id, timeout=0.0)["pending"]

        until(runs_again, lambda: f"{process}: {self.mesh.explain(task_id)}", FAILS_AFTER_S)
