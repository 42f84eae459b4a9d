"""Checks that the scheduler's answers, the log of acknowledgements, and the existing processes agree."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ray

from schedulemesh.core import RayScheduler
from schedulemesh.engine.state.evictions import RECENT
from tests.drills.acknowledged import Expected, Log
from tests.drills.batch import AT_ONCE
from tests.drills.batch_check import BatchCheck, Together
from tests.drills.batch_client import FOLDER, POOL
from tests.drills.clients import Workload
from tests.drills.history_check import all_attempts, history_inconsistencies
from tests.drills.processes import DrillFailed, agent_processes, daemons, until
from tests.drills.queue_evictions import QueueEvictions

#: Target: seconds from the detected death until everything is served again.
TARGET_S = 10.0
#: What takes longer than this, with starts of processes on a busy machine, has failed.
FAILS_AFTER_S = 90.0
#: Seconds within which all answers must agree once nothing is pending: a process that Ray reports as dead may
#: still be exiting, and a task that waits may just start.
AGREES_WITHIN_S = 30.0
#: Seconds in which all jobs, gangs and arrays end.
ALL_END_S = 120.0


class DuplicateWatch:
    """A thread that detects two simultaneous processes of one task, a task whose previous incarnation left a
    child process running, and members of gangs and arrays that may not run beside each other.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.twice: list[str] = []
        self._together, self._running = Together(AT_ONCE), set[tuple[str, int]]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            running = agent_processes(self.folder)
            for task_id, pids in running.items():
                if len(pids) > 1:
                    self.twice.append(f"{task_id} runs as {pids} at once")
            self._look_together({(name, pid) for name, pids in running.items() for pid in pids})
            # Only daemons that run before and after that: a next incarnation may begin between two looks.
            before, living = daemons(self.folder), agent_processes(self.folder)
            for task_id, parent, pid in set(before).intersection(daemons(self.folder)):
                if living.get(task_id, [parent]) != [parent] and parent not in living[task_id]:
                    self.twice.append(
                        f"{task_id} runs beside {pid}, started by its previous incarnation"
                    )

    def _look_together(self, running: set[tuple[str, int]]) -> None:
        # Those that were there before, too, ran at the same moment between the two looks.
        self.twice += self._together.inconsistencies(running & self._running)
        self._running = running


class Checker:
    """Checks everything after a kill, while the clients are paused."""

    def __init__(
        self,
        mesh: RayScheduler,
        namespace: str,
        log: Log,
        workload: Workload,
        watch: DuplicateWatch,
        batch: BatchChecker,
    ) -> None:
        self.mesh, self.namespace, self.log = mesh, namespace, log
        self.workload, self.watch, self.batch = workload, watch, batch
        self._queue_evictions = QueueEvictions(log, POOL)

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

    def finish(self) -> None:
        """Check everything once all jobs, gangs and arrays have ended."""
        self.pause()
        self.batch.finish(self.log.read())
        self.check()

    def check(self) -> None:
        """Raise DrillFailed with every inconsistency that does not disappear by itself."""
        end = time.monotonic() + AGREES_WITHIN_S
        latest = end + ALL_END_S
        while wrong := self._inconsistencies():
            twice = self.watch.twice or self.batch.watch.twice
            if time.monotonic() > end or self.workload.failures or twice:
                raise DrillFailed("; ".join(wrong))
            time.sleep(0.1)  # between two looks at processes and answers, which notify nobody
            if self.batch.unended(self.log.read()):
                # Jobs start and end between the looks.
                end = min(latest, time.monotonic() + AGREES_WITHIN_S)

    def expected(self) -> Expected:
        """What must run now, while the clients are paused."""
        return self._look()[2]

    def _look(self) -> tuple[list[str], list[dict[str, Any]], Expected]:
        """What tasks from the queue have evicted that they may not, all attempts, and what must run."""
        attempts = all_attempts(self.mesh)
        wrong = self._queue_evictions.write(attempts)
        self.log.write_returned(self._running())
        return wrong, attempts, Expected(self.log.read())

    def _inconsistencies(self) -> list[str]:
        wrong, attempts, expected = self._look()
        wrong += [*self.workload.failures, *self.watch.twice]
        wrong += expected.inconsistencies()
        wrong += self._tasks(expected)
        wrong += self._daemons()
        wrong += self._ledger()
        wrong += self._settings(expected)
        wrong += self._saved(expected)
        wrong += history_inconsistencies(self.mesh, attempts, expected)
        return wrong + self.batch.inconsistencies(self.log.read())

    def _tasks(self, expected: Expected) -> list[str]:
        """Exactly the acknowledged tasks run, each in one process."""
        listed_tasks = self._running()
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
        """The used quota is the sum over the agents that have started, and Ray has the same actors."""
        wrong = []
        pools = self.mesh.list_pools()["pools"]
        agents = self._agents()
        used = sum(pool["used"].get("cpu", 0.0) for pool in pools)
        have = sum(
            agent["resources"].get("cpu", 0.0)
            for agent in agents
            if agent["state"] not in ("waiting", "starting")
        )
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
        # Members of a gang have actors of their own.
        single = {agent["name"] for agent in agents if agent["pool"] != POOL}
        mark = f"schedulemesh:{self.mesh.name}:"
        in_ray = {
            entry["name"].removeprefix(mark).rpartition("#")[0]
            for entry in ray.util.list_named_actors(all_namespaces=True)
            if entry["namespace"] == self.namespace and entry["name"].startswith(mark)
        }
        if {name for name in in_ray if not name.startswith(f"{POOL}-")} != single:
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
        evicted = expected.evicted
        if (
            len(records) >= RECENT
        ):  # what is not on record any more may have been deleted with its state
            evicted = evicted & {record["task_id"] for record in records}
        missing = evicted - expected.tasks - expected.completed - stored - unsaved
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

    def _running(self) -> set[str]:
        """The tasks of the clients that run, or are started."""
        tasks = self.mesh.list_tasks()["tasks"]
        return {
            task["task_id"]
            for task in tasks
            if task["pool_name"] != POOL and task["phase"] != "queued"
        }

    def _agents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.mesh.list_agents()["agents"]
        return found

    def _nothing_starts_or_ends(self) -> bool:
        agents = (agent for agent in self._agents() if agent["pool"] != POOL)
        return all(agent["state"] == "running" for agent in agents)


class BatchChecker:
    """Checks each job, gang and array once it has ended, and in the end that all have."""

    def __init__(self, mesh: RayScheduler, folder: Path) -> None:
        self.folder = folder / FOLDER
        (self.folder / "processes").mkdir(parents=True, exist_ok=True)
        self.mesh, self.watch = mesh, DuplicateWatch(self.folder)
        self._check = BatchCheck(mesh, self.folder)
        #: Those that were acknowledged and checked.
        self.checked: set[str] = set()

    def inconsistencies(self, lines: list[dict[str, Any]]) -> list[str]:
        """What is wrong with those that have ended since; ``lines``: the log of acknowledgements."""
        wrong, task_ids = list(self.watch.twice), self._unchecked(lines)
        if wrong or not task_ids:
            return wrong
        waited = self.mesh.wait(task_ids, timeout=0.0)
        ended = [task for task in waited["tasks"] if task["task_id"] in waited["done"]]
        if ended:
            wrong = self._of_ended(ended, lines)
        if not wrong:
            self.checked.update(waited["done"])
        return wrong

    def unended(self, lines: list[dict[str, Any]]) -> list[str]:
        """Those that were acknowledged and have not ended."""
        task_ids = self._unchecked(lines)
        pending: list[str] = self.mesh.wait(task_ids, timeout=0.0)["pending"] if task_ids else []
        return pending

    def _unchecked(self, lines: list[dict[str, Any]]) -> list[str]:
        acknowledged = {line["task"] for line in lines if line["what"] == "batch"}
        return sorted(acknowledged - self.checked)

    def _of_ended(self, ended: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[str]:
        statuses = self._check.with_members(ended)
        cancelled = {line["task"] for line in lines if line["what"] == "batch cancelled"}
        evicted = Counter(line["task"] for line in lines if line["what"] == "batch evicted")
        killed = Counter(line["task"] for line in lines if line["what"] == "batch killed")
        wrong = self._check.inconsistencies(statuses, cancelled, killed)
        return wrong + [
            f"{status['task_id']} was evicted {evicted[status['task_id']]} times: {status}"
            for status in statuses
            if status.get("preemptions", 0) < evicted[status["task_id"]]
        ]

    def finish(self, lines: list[dict[str, Any]]) -> None:
        """Wait until all have ended, and check them; raises DrillFailed."""
        if task_ids := self._unchecked(lines):
            self._check.wait(task_ids, ALL_END_S)
        until(
            lambda: not agent_processes(self.folder),
            lambda: f"still run: {agent_processes(self.folder)}",
            AGREES_WITHIN_S,
        )


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
