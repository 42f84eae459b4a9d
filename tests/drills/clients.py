"""The workload: clients that submit, complete, evict, save, restore and change the policy at random.

A client's call never fails because a supervisor died: it is answered later. What it is answered goes to
the log of acknowledgements.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import Log
from tests.drills.agents import Marked

#: The pools of the workload and their CPUs; what the killer submits itself goes to one of its own.
POOLS = {"a": 3.0, "b": 2.0}
#: What a client does, and how often beside the others.
OPERATIONS = {
    "submit": 6,
    "complete": 2,
    "preempt": 2,
    "restore": 2,
    "save": 3,
    "policy": 1,
    "pool": 0.3,
    "look": 1,
}


class Doing:
    """A call under way."""

    def __init__(self, kind: str, task_id: str) -> None:
        self.kind, self.task_id = kind, task_id
        self.answered = threading.Event()


class Policy:
    """Values for the policy that never come twice, one change at a time."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.values = (1.0 + n / 1e6 for n in itertools.count(1))


class Client:
    """One caller: its operations, and what it knows of its own tasks."""

    def __init__(
        self, name: str, mesh: RayScheduler, log: Log, folder: Path, seed: str, policy: Policy
    ) -> None:
        self.name, self.mesh, self.log, self.folder = name, mesh, log, folder
        self.rng = random.Random(seed)
        self.handles: dict[str, Any] = {}
        self.evicted: list[str] = []
        self.doing: Doing | None = None
        self._numbers = itertools.count()
        self._policy = policy

    def do(self, kind: str) -> None:
        """One operation of this kind, on something at random."""
        getattr(self, kind)()

    def submit(
        self,
        pool: str | None = None,
        priority: float | None = None,
        slow_start_s: float | None = None,
        slow_save_s: float | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """A new task with an agent of one CPU."""
        rng = self.rng
        task_id = f"{self.name}-{next(self._numbers)}"
        if slow_start_s is None:
            slow_start_s = rng.choice((0.0, 0.3))
        if slow_save_s is None:
            slow_save_s = rng.choice((0.0, 0.2))
        answer = self._call(
            "submit",
            task_id,
            lambda: self.mesh.submit_task_with_preemption(
                task_id,
                pool or rng.choice(list(POOLS)),
                Marked,
                resources={"cpu": 1.0},
                priority=rng.uniform(1.0, 9.0) if priority is None else priority,
                actor_args=[task_id, str(self.folder), slow_start_s, slow_save_s],
                agent_name=f"on-{task_id}",
                **more,
            ),
        )
        return self._begun(task_id, answer)

    def complete(self) -> None:
        """A task is done, and its agent ends."""
        if self.handles:
            self.finish(self.rng.choice(list(self.handles)))

    def finish(self, task_id: str) -> dict[str, Any]:
        """This task is done, and its agent ends."""
        self.handles.pop(task_id, None)
        answer = self._call(
            "complete", task_id, lambda: self.mesh.complete_task(task_id, end_agent=True)
        )
        if answer["success"]:
            self.log.write("completed", task=task_id)
        return answer

    def preempt(self) -> None:
        """An eviction by hand of one of its own tasks."""
        if self.handles:
            self.evict(self.rng.choice(list(self.handles)))

    def evict(self, task_id: str) -> dict[str, Any]:
        """An eviction by hand of this task."""
        self.handles.pop(task_id, None)
        answer = self._call("preempt", task_id, lambda: self.mesh.preempt_task(task_id=task_id))
        for victim in answer.get("preempted", []):
            self.log.write("evicted", task=victim["task_id"])
            self.evicted.append(victim["task_id"])
        return answer

    def restore(self) -> None:
        """One of its own evicted tasks runs again from its saved state."""
        if not self.evicted:
            self.preempt()
            return
        task_id = self.evicted.pop(self.rng.randrange(len(self.evicted)))
        found = self._call("look", task_id, lambda: self.mesh.get_saved_state(task_id))
        if not found["success"]:
            raise AssertionError(f"the saved state of {task_id} is gone: {found}")
        saved = found["saved_state"]
        answer = self._call("restore", task_id, lambda: self.mesh.restore_task(saved))
        self._begun(task_id, answer)
        if not answer["success"]:
            self.evicted.append(task_id)

    def save(self) -> None:
        """A task counts on, and its state is saved while it runs."""
        if not self.handles:
            self._find_own()
            return
        task_id = self.rng.choice(list(self.handles))
        try:
            count = ray.get(self.handles[task_id].add.remote())
        except RayActorError:
            self._find_own()
            return
        answer = self._call("save", task_id, lambda: self.mesh.save_task_state(task_id))
        saved = answer.get("saved_state") or {}
        if answer["success"] and saved["source"] == "save_state":
            if saved["state"]["count"] < count:
                raise AssertionError(f"{task_id} was saved at {saved}, after it counted {count}")
            self.log.write("saved", task=task_id, count=count)

    def policy(self) -> None:
        """The policy changes to a value that it never had."""
        with self._policy.turn:
            value = next(self._policy.values)
            answer = self._call(
                "policy",
                str(value),
                lambda: self.mesh.update_preemption_policy(same_pool_priority_threshold=value),
            )
            if answer["success"]:
                self.log.write("policy", value=value)

    def pool(self) -> None:
        """A new pool, of nothing."""
        name = f"pool-{self.name}-{next(self._numbers)}"
        answer = self._call(
            "pool", name, lambda: self.mesh.create_pool(name, resources={"memory": 1})
        )
        if answer["success"]:
            self.log.write("pool", pool=name)

    def look(self) -> None:
        """Reads; they are answered whatever happens."""
        answer = self._call("look", "", self.mesh.list_tasks)
        if not answer["success"]:
            raise AssertionError(answer)

    def _find_own(self) -> None:
        """Its tasks that run, where evictions and rebuilding have left it with dead handles."""
        agents = self.mesh.list_agents()["agents"]
        running = {a["tasks"][0]: a["handle"] for a in agents if a["tasks"] and a["handle"]}
        mine = f"{self.name}-"
        self.handles = {task: handle for task, handle in running.items() if task.startswith(mine)}

    def _begun(self, task_id: str, answer: dict[str, Any]) -> dict[str, Any]:
        for victim in answer.get("preempted", []):
            self.log.write("evicted", task=victim["task_id"])
        for victim in answer.get("not_restarted", []):
            self.log.write("evicted", task=victim)
        if answer["success"]:
            self.log.write("submitted", task=task_id)
            self.handles[task_id] = answer["agent"]["handle"]
        return answer

    def _call(self, kind: str, task_id: str, call: Callable[[], Any]) -> Any:
        doing = self.doing = Doing(kind, task_id)
        self.log.write("asked", kind=kind, task=task_id, client=self.name)
        try:
            answer = call()
        finally:
            doing.answered.set()
            self.doing = None
        self.log.write("answered", kind=kind, task=task_id, success=answer["success"])
        return answer


class Workload:
    """Clients in threads of their own, that can be told to rest."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        #: What is wanted next, by the killer; None: whatever comes.
        self.wanted: str | None = None
        self.failures: list[str] = []
        self._may_go = threading.Event()
        self._over = False
        self._busy = {client.name: False for client in clients}
        self._threads = [
            threading.Thread(target=self._run, args=(c,), daemon=True) for c in clients
        ]
        for thread in self._threads:
            thread.start()

    def go(self) -> None:
        """Work on."""
        self._may_go.set()

    def rest(self) -> None:
        """Begin nothing more."""
        self._may_go.clear()

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way."""
        return not any(self._busy.values())

    def under_way(self, kind: str) -> Doing | None:
        """A call of this kind that is under way."""
        for client in self.clients:
            doing = client.doing
            if doing is not None and doing.kind == kind:
                return doing
        return None

    def close(self) -> None:
        """End the threads."""
        self._over = True
        self._may_go.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, client: Client) -> None:
        while True:
            self._may_go.wait()
            if self._over:
                return
            self._busy[client.name] = True
            if self._may_go.is_set():
                self._once(client)
            self._busy[client.name] = False
            time.sleep(client.rng.uniform(0.0, 0.05))  # calls come at random moments

    def _once(self, client: Client) -> None:
        kinds, weights = list(OPERATIONS), list(OPERATIONS.values())
        kind = self.wanted
        if kind is None or client.rng.random() < 0.3:
            (kind,) = client.rng.choices(kinds, weights)
        try:
            client.do(kind)
        except Exception:  # noqa: BLE001  # the judge tells it
            self.failures.append(f"{client.name} {kind}: {traceback.format_exc()}")
