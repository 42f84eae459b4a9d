"""The judge: whether what the scheduler says, what the log says and what really lives are the same."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import ray

from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import Expected, Log
from tests.drills.clients import Workload
from tests.drills.processes import DrillFailed, daemons, lives, until

#: Seconds within which everything must serve again, once the death is known.
SERVES_AGAIN_S = 10.0
#: Where the machine is busy with other things, processes start late; beyond this it is a failure there too.
GIVES_UP_S = 30.0
#: Seconds that a process which Ray calls dead may take to be gone.
EXITS_S = 3.0
#: Seconds for what is under way to end: starts on a busy machine included.
REST_S = 90.0


class Watch:
    """Looks all the time whether two living processes run one task, or one runs beside what its former
    life has started.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.twice: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for task_id, pids in lives(self.folder).items():
                if len(pids) > 1:
                    self.twice.append(f"{task_id} runs as {pids} at once")
            # Daemons first: what lives after them may have been started by the next life.
            found, living = daemons(self.folder), lives(self.folder)
            for task_id, parent, pid in found:
                if living.get(task_id, [parent]) != [parent] and parent not in living[task_id]:
                    self.twice.append(f"{task_id} runs beside {pid}, started by its former life")


class Judge:
    """Judges after each kill, with the clients at rest."""

    def __init__(
        self, mesh: RayScheduler, namespace: str, log: Log, workload: Workload, watch: Watch
    ) -> None:
        self.mesh, self.namespace, self.log = mesh, namespace, log
        self.workload, self.watch = workload, watch

    def rest(self) -> None:
        """Bring the clients to rest, and wait until nothing is under way."""
        self.workload.rest()
        until(
            lambda: self.workload.at_rest,
            lambda: f"still under way: {[vars(c.doing) for c in self.workload.clients if c.doing]}",
            REST_S,
        )
        until(self._nothing_starts_or_ends, lambda: f"not at rest: {self._agents()}", REST_S)

    def judge(self) -> None:
        """Raise DrillFailed with all that is wrong."""
        wrong = [*self.workload.failures, *self.watch.twice]
        expected = Expected(self.log.read())
        wrong += expected.nonsense()
        wrong += self._tasks(expected)
        wrong += self._daemons()
        wrong += self._ledger()
        wrong += self._settings(expected)
        wrong += self._saved(expected)
        if wrong:
            raise DrillFailed("; ".join(wrong))

    def _tasks(self, expected: Expected) -> list[str]:
        """The acknowledged tasks run, each in one process, and no others."""
        on_book = {task["task_id"] for task in self.mesh.list_tasks()["tasks"]}
        wrong = [f"{t} was acknowledged and is missing" for t in expected.tasks - on_book]
        wrong += [f"{t} runs and was never acknowledged" for t in on_book - expected.tasks]
        agents = {a["tasks"][0]: a["pid"] for a in self._agents() if a["tasks"]}
        living = self._settled_processes(on_book)
        for task_id in on_book:
            if living.get(task_id) != [agents.get(task_id)]:
                found = living.get(task_id)
                wrong.append(f"{task_id} is on the book as {agents.get(task_id)}, lives as {found}")
        wrong += [f"{t} lives as {living[t]}, off the book" for t in living.keys() - on_book]
        return wrong

    def _daemons(self) -> list[str]:
        """What agents started ends with them."""
        found, living = daemons(self.watch.folder), lives(self.watch.folder)
        return [
            f"{pid} lives, which was started by agent process {parent} of {task_id}"
            for task_id, parent, pid in found
            if parent not in living.get(task_id, [])
        ]

    def _settled_processes(self, on_book: set[str]) -> dict[str, list[int]]:
        """Living processes; Ray calls one dead when it has begun to exit, some milliseconds early."""
        end = time.monotonic() + EXITS_S
        while True:
            living = lives(self.watch.folder)
            if living.keys() <= on_book or time.monotonic() > end:
                return living
            time.sleep(0.01)  # between two looks at the process table

    def _ledger(self) -> list[str]:
        """What is used is what the living agents have, and Ray has the same actors."""
        wrong = []
        pools = self.mesh.list_pools()["pools"]
        agents = self._agents()
        used = sum(pool["used"].get("cpu", 0.0) for pool in pools)
        have = sum(agent["resources"].get("cpu", 0.0) for agent in agents)
        if not math.isclose(used, have):
            wrong.append(f"{used:g} CPUs are used by the book, agents have {have:g}")
        lent = sum(
            pool["lent"].get("cpu", 0.0) - pool["borrowed"].get("cpu", 0.0) for pool in pools
        )
        if not math.isclose(lent, 0.0):
            wrong.append(f"pools have lent {lent:g} CPUs more than others have borrowed")
        listed = sorted(name for pool in pools for name in pool["agents"])
        if listed != sorted(agent["name"] for agent in agents):
            wrong.append(f"the pools list {listed}")
        mark = f"schedulemesh:{self.mesh.name}:"
        in_ray = {
            entry["name"].removeprefix(mark).rpartition("#")[0]
            for entry in ray.util.list_named_actors(all_namespaces=True)
            if entry["namespace"] == self.namespace and entry["name"].startswith(mark)
        }
        if in_ray != set(listed):
            wrong.append(f"Ray has the actors {sorted(in_ray)}, the book has {listed}")
        return wrong

    def _settings(self, expected: Expected) -> list[str]:
        wrong = []
        policy = self.mesh.get_preemption_policy()["policy"]["same_pool_priority_threshold"]
        if expected.policy is not None and policy != expected.policy:
            wrong.append(f"the policy says {policy}, acknowledged was {expected.policy}")
        pools = {pool["name"] for pool in self.mesh.list_pools()["pools"]}
        wrong += [f"pool {name} is missing" for name in expected.pools - pools]
        return wrong

    def _saved(self, expected: Expected) -> list[str]:
        """Saved counts of tasks that run or were evicted are there, or newer ones."""
        stored = {s["task_id"] for s in self.mesh.list_saved_states()["saved_states"]}
        gone = expected.evicted - expected.tasks - expected.completed - stored
        wrong = [f"{task_id} was evicted, and its state is gone" for task_id in gone]
        for task_id, count in expected.saved.items():
            if task_id not in expected.tasks | expected.evicted:
                continue
            if task_id in expected.completed:
                continue
            found: dict[str, Any] = self.mesh.get_saved_state(task_id)
            state = (found.get("saved_state") or {}).get("state") or {}
            if state.get("count", -1) < count:
                wrong.append(f"{task_id} was saved at {count}; there is {found}")
        return wrong

    def _agents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.mesh.list_agents()["agents"]
        return found

    def _nothing_starts_or_ends(self) -> bool:
        return all(agent["state"] == "running" for agent in self._agents())


def served_again(mesh: RayScheduler, since: float) -> float:
    """Seconds from then until the scheduler has answered a read and a change."""
    if not mesh.list_pools()["success"]:
        raise DrillFailed("list_pools does not succeed")
    # Another size each time, so that there is something to be written.
    until(
        lambda: mesh.ensure_pool("served-again", resources={"memory": since})["success"],
        "changes are refused",
        GIVES_UP_S,
    )
    return time.monotonic() - since
