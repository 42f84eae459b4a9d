"""Kills of the supervisor while tasks wait, are held, return after an eviction, and run by themselves."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from tests.drills.agents import Marked
from tests.drills.checker import FAILS_AFTER_S
from tests.drills.drill_context import DrillContext
from tests.drills.processes import DrillFailed, kill, marks

#: Tasks of one kill; the pool has room for one at a time.
TASKS = 5
#: Seconds for which each runs, and within which the supervisor is killed.
RUNS_S, KILLED_WITHIN_S = 0.3, 3.0


class QueuedWorkKills(DrillContext):
    """The supervisor is killed while the calls about queued work are made."""

    _numbers = itertools.count()

    def supervisor_with_queued_work(self) -> float | None:
        """No task is lost or run twice, and every result is that of the task's own run."""
        pid, took = self.supervisor_pid(), []

        def killed() -> None:
            took.append(self.recovery_time(kill(pid), pid))

        killer = threading.Timer(self.rng.uniform(0.0, KILLED_WITHIN_S), killed)
        killer.start()
        number = next(self._numbers)
        work = [f"work-{number}-{n}" for n in range(TASKS)]
        self._submit(work)
        evicted, cancelled = self._change(work)
        killer.join()
        self._check(work, evicted, cancelled)
        if not took:
            raise DrillFailed("the supervisor was not killed, or did not recover")
        return took[0]

    def _submit(self, work: list[str]) -> None:
        answer = self.mesh.submit_many([self._spec(task_id) for task_id in work])
        if not answer["success"]:
            raise DrillFailed(f"queued work was refused: {answer['error']}")

    def _spec(self, task_id: str) -> dict[str, Any]:
        return {
            "task_id": task_id,
            "pool_name": "work",
            "actor_class": Marked,
            "resources": {"cpu": 1.0},
            "priority": 0.0,
            "actor_args": [task_id, str(self.folder)],
            "agent_name": f"on-{task_id}",
            "run": "produce",
            "run_args": (RUNS_S,),
            "queue": True,
            "on_preempted": "requeue",
        }

    def _change(self, work: list[str]) -> tuple[set[str], set[str]]:
        """Hold a task, evict another one and cancel a third; those that were evicted and cancelled."""
        evicted, cancelled = set(), set()
        held, victim, unwanted = work[-1], work[0], work[2]
        is_held = self.mesh.hold_task(held)["success"]
        time.sleep(self.rng.uniform(0.0, 1.0))  # the eviction comes at a random moment
        if self.mesh.preempt_task(task_id=victim)["success"]:
            evicted.add(victim)
        answer = self.mesh.cancel_task(unwanted)
        if answer["success"] and answer.get("detail") != "already_ended":
            cancelled.add(unwanted)
        if is_held and self._state(held) != "queued":
            raise DrillFailed(f"{held} is held and is {self._state(held)}")
        self.mesh.release_task(held)
        return evicted, cancelled

    def _state(self, task_id: str) -> str:
        state: str = self.mesh.wait(task_id, timeout=0)["tasks"][0]["state"]
        return state

    def _check(self, work: list[str], evicted: set[str], cancelled: set[str]) -> None:
        """Each task has ended as it was asked to, with the result of its only run."""
        waited = self.mesh.wait(work, timeout=FAILS_AFTER_S)
        if waited["pending"]:
            raise DrillFailed(f"never ended: {waited['tasks']}")
        made = [name.split("@") for name in marks(self.folder, "produced")]
        for status in waited["tasks"]:
            task_id = status["task_id"]
            own = {token for name, token in made if name == task_id}
            expected = "cancelled" if task_id in cancelled else "completed"
            if status["state"] != expected:
                raise DrillFailed(f"{task_id} should be {expected}: {status}")
            if task_id not in evicted and len(own) > 1:
                raise DrillFailed(f"{task_id} ran {len(own)} times")
            if expected == "completed" and self.mesh.result(task_id)["result"] not in own:
                raise DrillFailed(f"{task_id} has a result that its runs did not return")
