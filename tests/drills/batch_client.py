"""A client of jobs, gangs and arrays: it submits, evicts, holds and cancels them at random, and they end by
themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import Log
from tests.drills.batch import KINDS, MEMBERS, SHAPES, Submitter, named
from tests.drills.clients import Client, Policy

#: The pool of these tasks, its CPUs, and the folder of their markers.
POOL, CPUS, FOLDER = "batch", 3.0, "batch"
#: The most of them that are not known to have ended.
_MOST = 3
#: What they do wrong here: nothing that takes until the end of a time limit.
_KINDS = {kind: KINDS[kind] for kind in KINDS if kind not in ("save hangs", "saves too much")}
_SHAPES = {shape: weight for shape, weight in SHAPES.items() if shape != "agent"}


class BatchClient(Client):
    """One caller, and its jobs, gangs and arrays."""

    operations: ClassVar[dict[str, float]] = {
        "submit_batch": 3,
        "evict_batch": 3,
        "hold_batch": 1,
        "cancel_batch": 0.1,
        "read": 0.5,
    }

    def __init__(
        self, name: str, mesh: RayScheduler, log: Log, folder: Path, seed: str, policy: Policy
    ) -> None:
        super().__init__(name, mesh, log, folder, seed, policy)
        self._submitter = Submitter(mesh, POOL, folder / FOLDER, self.rng)
        self._submitter.shapes, self._submitter.kinds = _SHAPES, _KINDS
        self._open: list[str] = []
        (folder / FOLDER / "processes").mkdir(parents=True, exist_ok=True)

    def submit_batch(
        self, shape: str = "", kind: str = "", steps: int | None = None
    ) -> dict[str, Any]:
        """Submit a new task, unless many have not ended."""
        if self._open and not shape:
            ended = self._call("read", "", lambda: self.mesh.wait(self._open, timeout=0.0))["done"]
            self._open = [task_id for task_id in self._open if task_id not in ended]
        if len(self._open) >= _MOST and not shape:
            return {"success": False}
        task_id = self._submitter.random_id(f"{self.name}-{next(self._numbers)}", shape, kind)
        # One that is to be killed waits for no other task, and is evicted for none.
        priority = 9.5 if shape else self.rng.uniform(5.0, 8.4)
        steps = steps or self.rng.randrange(2, 20)
        answer = self._call(
            "submit_batch", task_id, lambda: self._submitter.submit(task_id, priority, steps)
        )
        if answer["success"]:
            self.log.write("batch", task=task_id)
            self._open.append(task_id)
        return answer

    def evict_batch(self) -> None:
        """Evict one of them that runs, or a member of an array that does."""
        listed = self._call("read", "", self.mesh.list_tasks)["tasks"]
        running = [
            task["task_id"]
            for task in listed
            if task["phase"] == "running" and task["task_id"].partition("[")[0] in self._open
        ]
        if not running:
            self.submit_batch()
            return
        task_id = self.rng.choice(running)
        answer = self._call("evict_batch", task_id, lambda: self.mesh.preempt_task(task_id=task_id))
        for victim in answer.get("preempted", []):
            self.log.write("batch evicted", task=victim["task_id"])

    def hold_batch(self) -> None:
        """Hold one of them, and release it."""
        if task_id := self._random_task():
            self._call("hold", task_id, lambda: self.mesh.hold_task(task_id))
            self._call("release", task_id, lambda: self.mesh.release_task(task_id))

    def cancel_batch(self) -> None:
        """Cancel one of them, or a member of an array."""
        if not (task_id := self._random_task()):
            return
        answer = self._call("cancel_batch", task_id, lambda: self.mesh.cancel_task(task_id))
        if answer["success"] and answer.get("detail") != "already_ended":
            self.log.write("batch cancelled", task=task_id)

    def _random_task(self) -> str:
        """One of them, of an array a member; empty: there is none."""
        if not self._open:
            return ""
        task_id = self.rng.choice(self._open)
        is_array = named(task_id).is_array
        return f"{task_id}[{self.rng.randrange(MEMBERS)}]" if is_array else task_id
