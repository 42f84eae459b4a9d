"""The workload: clients that submit, complete, evict, save, restore and change the policy at random.

A client's call never fails because a supervisor died: it is answered later. Every reply is written to the
log of acknowledgements.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray.exceptions import RayActorError

from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import Log
from tests.drills.agents import Marked

#: The pools of the workload and their CPUs; the drill's own submissions use other pools.
POOLS = {"a": 3.0, "b": 2.0}
#: The operations of a client with their weights.
OPERATIONS = {
    "submit": 6,
    "complete": 2,
    "preempt": 2,
    "restore": 2,
    "save": 3,
    "policy": 1,
    "pool": 0.3,
    "read": 1,
}


class PendingCall:
    """A call that has not been answered yet."""

    def __init__(self, kind: str, task_id: str) -> None:
        self.kind, self.task_id = kind, task_id
        self.answered = threading.Event()


class Policy:
    """Unique values for the policy, and a lock so that it is changed by one client at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values = (1.0 + n / 1e6 for n in itertools.count(1))


class Client:
    """One caller: its operations, and its own tasks."""

    operations: ClassVar[dict[str, float]] = OPERATIONS

    def __init__(
        self, name: str, mesh: RayScheduler, log: Log, folder: Path, seed: str, policy: Policy
    ) -> None:
        self.name, self.mesh, self.log, self.folder = name, mesh, log, folder
        self.rng = random.Random(seed)
        self.handles: dict[str, Any] = {}
        self.evicted: list[str] = []
        self.pending: PendingCall | None = None
        self._numbers = itertools.count()
        self._policy = policy

    def do(self, kind: str) -> None:
        """Run one operation of this kind on a random task."""
        getattr(self, kind)()

    def submit(
        self,
        pool: str | None = None,
        priority: float | None = None,
        slow_start_s: float | None = None,
        slow_save_s: float | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Submit a new task with an agent of one CPU."""
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
        return self._record_start(task_id, answer)

    def complete(self) -> None:
        """Complete a random task and end its agent."""
        if self.handles:
            self.finish(self.rng.choice(list(self.handles)))

    def finish(self, task_id: str) -> dict[str, Any]:
        """Complete this task and end its agent."""
        self.handles.pop(task_id, None)
        answer = self._call(
            "complete", task_id, lambda: self.mesh.complete_task(task_id, end_agent=True)
        )
        if answer["success"]:
            self.log.write("completed", task=task_id)
        return answer

    def preempt(self) -> None:
        """Preempt a random task of its own."""
        if self.handles:
            self.evict(self.rng.choice(list(self.handles)))

    def evict(self, task_id: str) -> dict[str, Any]:
        """Preempt this task."""
        self.handles.pop(task_id, None)
        answer = self._call("preempt", task_id, lambda: self.mesh.preempt_task(task_id=task_id))
        for victim in answer.get("preempted", []):
            self.log.write("evicted", task=victim["task_id"])
            self.evicted.append(victim["task_id"])
        return answer

    def restore(self) -> None:
        """Restore one of its own evicted tasks from its saved state."""
        if not self.evicted:
            self.preempt()
            return
        task_id = self.evicted.pop(self.rng.randrange(len(self.evicted)))
        found = self._call("read", task_id, lambda: self.mesh.get_saved_state(task_id))
        if not found["success"]:
            raise AssertionError(f"the saved state of {task_id} is missing: {found}")
        saved = found["saved_state"]
        answer = self._call("restore", task_id, lambda: self.mesh.restore_task(saved))
        self._record_start(task_id, answer)
        if not answer["success"]:
            self.evicted.append(task_id)

    def save(self) -> None:
        """Increment a task's count, and save its state while it runs."""
        if not self.handles:
            self._find_own()
            return
        task_id = self.rng.choice(list(self.handles))
        handle = self.handles[task_id]
        count = self._added(handle, 1)
        if count is None:
            return
        answer = self._call("save", task_id, lambda: self.mesh.save_task_state(task_id))
        saved = answer.get("saved_state") or {}
        if answer["success"] and saved["source"] == "save_state":
            if saved["state"]["count"] >= count:
                self.log.write("saved", task=task_id, count=count)
            # If it was evicted meanwhile and runs again, it may have been saved before it counted.
            elif self._added(handle, 0) is not None:
                raise AssertionError(f"{task_id} was saved at {saved}, after it counted {count}")

    def _added(self, handle: Any, number: int) -> int | None:
        """The count of an agent after this is added; None: it has ended."""
        try:
            count: int = ray.get(handle.add.remote(number))
        except RayActorError:
            self._find_own()
            return None
        return count

    def policy(self) -> None:
        """Set the policy to a value that it never had before."""
        with self._policy.lock:
            value = next(self._policy.values)
            answer = self._call(
                "policy",
                str(value),
                lambda: self.mesh.update_preemption_policy(same_pool_priority_threshold=value),
            )
            if answer["success"]:
                self.log.write("policy", value=value)

    def pool(self) -> None:
        """Create a pool without CPUs."""
        name = f"pool-{self.name}-{next(self._numbers)}"
        answer = self._call(
            "pool", name, lambda: self.mesh.create_pool(name, resources={"memory": 1})
        )
        if answer["success"]:
            self.log.write("pool", pool=name)

    def read(self) -> None:
        """List the tasks; reads are answered even while changes are refused."""
        answer = self._call("read", "", self.mesh.list_tasks)
        if not answer["success"]:
            raise AssertionError(answer)

    def _find_own(self) -> None:
        """Look up its running tasks, because evictions and rebuilds have made its handles stale."""
        # Of a victim that another client is told about meanwhile, the answer may show the run before.
        victims = set(self.log.may_return)
        agents = self.mesh.list_agents()["agents"]
        running = {a["tasks"][0]: a["handle"] for a in agents if a["tasks"] and a["handle"]}
        self.log.write_returned(running.keys() & victims)
        mine = f"{self.name}-"
        self.handles = {task: handle for task, handle in running.items() if task.startswith(mine)}

    def _record_start(self, task_id: str, answer: dict[str, Any]) -> dict[str, Any]:
        for victim in answer.get("preempted", []):
            self.log.write("evicted", task=victim["task_id"])
        for victim in answer.get("not_restarted", []):
            self.log.write("evicted", task=victim)
        for victim in answer.get("requeued", []):
            self.log.write("evicted", task=victim)
            self.log.may_return.add(victim)
        if answer["success"]:
            self.log.write("submitted", task=task_id)
            handle = answer["agent"]["handle"]
            # An answer that comes late, as after a restart, may be about an agent that was evicted meanwhile.
            if handle is not None:
                self.handles[task_id] = handle
        return answer

    def _call(self, kind: str, task_id: str, call: Callable[[], Any]) -> Any:
        pending = self.pending = PendingCall(kind, task_id)
        self.log.write("asked", kind=kind, task=task_id, client=self.name)
        try:
            answer = call()
        finally:
            pending.answered.set()
            self.pending = None
        self.log.write("answered", kind=kind, task=task_id, success=answer["success"])
        return answer


class Workload:
    """Clients in their own threads, which can be paused."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        #: The operation that the drill needs next; None: any.
        self.next_operation: str | None = None
        self.failures: list[str] = []
        self._may_run = threading.Event()
        self._over = False
        self._busy = {client.name: False for client in clients}
        self._threads = [
            threading.Thread(target=self._run, args=(c,), daemon=True) for c in clients
        ]
        for thread in self._threads:
            thread.start()

    def resume(self) -> None:
        """Let the clients start operations."""
        self._may_run.set()

    def pause(self) -> None:
        """Let the clients start no further operations."""
        self._may_run.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no operation is running."""
        return not any(self._busy.values())

    def pending_call(self, kind: str) -> PendingCall | None:
        """A pending call of this kind."""
        for client in self.clients:
            pending = client.pending
            if pending is not None and pending.kind == kind:
                return pending
        return None

    def close(self) -> None:
        """End the threads."""
        self._over = True
        self._may_run.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, client: Client) -> None:
        while True:
            self._may_run.wait()
            if self._over:
                return
            self._busy[client.name] = True
            if self._may_run.is_set():
                self._once(client)
            self._busy[client.name] = False
            time.sleep(client.rng.uniform(0.0, 0.05))  # calls come at random moments

    def _once(self, client: Client) -> None:
        kinds, weights = list(client.operations), list(client.operations.values())
        kind = self.next_operation
        if kind not in client.operations or client.rng.random() < 0.3:
            (kind,) = client.rng.choices(kinds, weights)
        try:
            client.do(kind)
        except Exception:  # noqa: BLE001  # reported by the checker
            self.failures.append(f"{client.name} {kind}: {traceback.format_exc()}")
