"""Checks that the scheduler's answers, the log of acknowledgements, and the existing processes agree."""

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
from tests.drills.history_check import history_inconsistencies
from tests.drills.processes import DrillFailed, agent_processes, daemons, until

#: Target: seconds from the detected death until everything is served again.
TARGET_S = 10.0
#: What takes longer than this, with starts of processes on a busy machine, has failed.
FAILS_AFTER_S = 90.0
#: Seconds within which all answers must agree once nothing is pending: a process that Ray reports as dead may
#: still be exiting, and a task that waits may just start.
AGREES_WITHIN_S = 30.0


class DuplicateWatch:
    """A thread that detects two simultaneous processes of one task, or a task whose previous incarnation
    left a child process running.
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
            for task_id, pids in agent_processes(self.folder).items():
                if len(pids) > 1:
                    self.twice.append(f"{task_id} runs as {pids} at once")
            # Only daemons that run before and after that: a next incarnation may begin between two looks.
            before, living = daemons(self.folder), agent_processes(self.folder)
            for task_id, parent, pid in set(before).intersection(daemons(self.folder)):
                if living.get(task_id, [parent]) != [parent] and parent not in living[task_id]:
                    self.twice.append(
                        f"{task_id} runs beside {pid}, started by its previous incarnation"
                    )


class Checker:
    """Checks everything after a kill, while the clients are paused."""

    def __init__(
        self,
        mesh: RayScheduler,
        namespace: str,
        log: Log,
        workload: Workload,
        watch: DuplicateWatch,
    ) -> None:
        self.mesh, self.namespace, self.log = mesh, namespace, log
        self.workload, self.watch = workload, watch

    def pause(self) -> None:
        """Pause the clients and wait until no operation is pending."""
        self.workload.pause()
        until(
            lambda: self.workload.is_idle,
            lambda: (
                f"still pending: {[vars(c.pending) for c in self.workload.clients if c.pending]}"
            ),
            FAILS_AFTER_S,
        )
        until(
            self._nothing_starts_or_ends,
            lambda: f"agents still start or end: {self._agents()}",
            FAILS_AFTER_S,
        )

    def check(self) -> None:
        """Raise DrillFailed with every inconsistency that does not disappear by itself."""
        end = time.monotonic() + AGREES_WITHIN_S
        while wrong := self._inconsistencies():
            if time.monotonic() > end or self.workload.failures or self.watch.twice:
                raise DrillFailed("; ".join(wrong))
            time.sleep(0.1)  # between two looks at processes and answers, which notify nobody

    def _inconsistencies(self) -> list[str]:
        wrong = [*self.workload.failures, *self.watch.twice]
        self.log.write_returned({task["task_id"] for task in self.mesh.list_tasks()["tasks"]})
        expected = Expected(self.log.read())
        wrong += expected.inconsistencies()
        wrong += self._tasks(expected)
        wrong += self._daemons()
        wrong += self._ledger()
        wrong += self._settings(expected)
        wrong += self._saved(expected)
        return wrong + history_inconsistencies(self.mesh, expected)

    def _tasks(self, expected: Expected) -> list[str]:
        """Exactly the acknowledged tasks run, each in one process."""
        listed_tasks = {task["task_id"] for task in self.mesh.list_tasks()["tasks"]}
        wrong = [f"{t} was acknowledged and is missing" for t in expected.tasks - listed_tasks]
        wrong += [f"{t} runs and was never acknowledged" for t in listed_tasks - expected.tasks]
        agents = {a["tasks"][0]: a["pid"] for a in self._agents() if a["tasks"]}
        living = agent_processes(self.watch.folder)
        for task_id in listed_tasks:
            if living.get(task_id) != [agents.get(task_id)]:
                found = living.get(task_id)
                wrong.append(
                    f"{task_id} is listed with process {agents.get(task_id)} and runs as {found}"
                )
        wrong += [
            f"{t} runs as {living[t]} and is not listed" for t in living.keys() - listed_tasks
        ]
        return wrong

    def _daemons(self) -> list[str]:
        """Processes started by an agent end with it."""
        found, living = daemons(self.watch.folder), agent_processes(self.watch.folder)
        return [
            f"process {pid} runs, started by the ended agent process {parent} of {task_id}"
            for task_id, parent, pid in found
            if parent not in living.get(task_id, [])
        ]

    def _ledger(self) -> list[str]:
        """The used quota is the sum over the agents, and Ray has the same actors."""
        wrong = []
        pools = self.mesh.list_pools()["pools"]
        agents = self._agents()
        used = sum(pool["used"].get("cpu", 0.0) for pool in pools)
        have = sum(agent["resources"].get("cpu", 0.0) for agent in agents)
        if not math.isclose(used, have):
            wrong.append(f"{used:g} CPUs are accounted as used, agents have {have:g}")
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
            wrong.append(f"Ray has the actors {sorted(in_ray)}, the scheduler lists {listed}")
        return wrong

    def _settings(self, expected: Expected) -> list[str]:
        wrong = []
        policy = self.mesh.get_preemption_policy()["policy"]["same_pool_priority_threshold"]
        if expected.policy is not None and policy != expected.policy:
            wrong.append(f"the policy has {policy}, acknowledged was {expected.policy}")
        pools = {pool["name"] for pool in self.mesh.list_pools()["pools"]}
        wrong += [f"pool {name} is missing" for name in expected.pools - pools]
        return wrong

    def _saved(self, expected: Expected) -> list[str]:
        """Running and evicted tasks have a saved count at least as high as the acknowledged one; an evicted
        one has a saved state, unless its record says that nothing was saved, as where its process was killed.
        """
        listed = self.mesh.list_saved_states()["saved_states"]
        stored = {task["task_id"] for task in listed if task["state_saved"]}
        records = self.mesh.list_preemptions(limit=10_000)["preemptions"]
        unsaved = {record["task_id"] for record in records if not record["state_saved"]}
        missing = expected.evicted - expected.tasks - expected.completed - stored - unsaved
        wrong = [f"{task_id} was evicted, and its state is missing" for task_id in missing]
        for task_id, count in expected.saved.items():
            if task_id not in expected.tasks | expected.evicted:
                continue
            if task_id in expected.completed:
                continue
            found: dict[str, Any] = self.mesh.get_saved_state(task_id)
            state = (found.get("saved_state") or {}).get("state") or {}
            if state.get("count", -1) < count:
                wrong.append(f"{task_id} was saved at {count}; stored is {found}")
        return wrong

    def _agents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.mesh.list_agents()["agents"]
        return found

    def _nothing_starts_or_ends(self) -> bool:
        return all(agent["state"] == "running" for agent in self._agents())


def time_until_served(mesh: RayScheduler, since: float) -> float:
    """Seconds from ``since`` until the scheduler has answered a read and a change."""
    if not mesh.list_pools()["success"]:
        raise DrillFailed("list_pools does not succeed")
    # A different size each time, so that the journal is written.
    until(
        lambda: mesh.ensure_pool("served-again", resources={"memory": since})["success"],
        "changes are refused",
        FAILS_AFTER_S,
    )
    return time.monotonic() - since
