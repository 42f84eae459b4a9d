"""Kill nodes in mid-eviction, mid-save, mid-start and mid-work, with and without the supervisor on them.

Meanwhile tasks are evicted whose ``save_state`` fails, hangs, dies or returns too much; then every task and
its record are checked. ``make drill`` runs it, on a cluster of its own. Environment variables:
``DRILL_KILLS`` (number of kills, default 200), ``DRILL_SEED`` (default random; it is printed),
``DRILL_SECONDS`` (no further round starts after this time; default none) and ``DRILL_KEEP`` (where to copy
the markers of a drill that failed). Several kills are a round with a scheduler of its own, whose journal is
in a database, and whose supervisor is on a node that may be killed. All processes of a node are killed at
once, as in a power failure.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from schedulemesh.config.settings import JournalSettings, SchedulerSettings
from schedulemesh.core import RayScheduler
from schedulemesh.core.client.connection import connect
from tests.clusters.nodes import FAST
from tests.drills.agents import began_at
from tests.drills.checker import DuplicateWatch
from tests.drills.nodes import database, known_dead, power_off
from tests.drills.processes import DrillFailed, agent_processes, marks, until

NODES, CPUS, NAMESPACE = 3, 3, "nodes"
NODE = {"num_cpus": CPUS, "object_store_memory": 80_000_000}
#: Kills of a round; tasks that are submitted before the first one and for each, and how many of these evict.
KILLS, FIRST, TASKS, URGENT = 8, 14, 7, 3
#: What a task does wrong, and how often it is chosen.
KINDS = {
    "good": 6,
    "no save": 2,
    "save raises": 2,
    "save hangs": 2,
    "save dies": 1,
    "saves too much": 2,
    "restore raises": 1,
    "run raises": 1,
}
#: How often those are tried again that fail by themselves; the others more often than nodes are killed.
RETRIES = {"run raises": 1, "restore raises": 2}
#: Of those, the ones that never have a state to be restored.
NEVER_SAVED = {"no save", "save raises", "save hangs", "save dies", "saves too much"}
MOMENTS = ("saving", "starting", "working", "preempting")
#: Seconds in which all tasks have to end once nothing is killed any more.
ENDS_S = 180.0
#: Seconds for which a moment is waited for.
MOMENT_S = 4.0
SAVE_S, SAVED_BYTES = 2.0, 100_000


class Task:
    """Counts steps; each kind fails in its own way. Markers show what it has done, in which process."""

    def __init__(
        self, name: str, labels: dict[str, str], task_id: str, folder: str, slow_s: float
    ) -> None:
        self.folder, self.task_id = Path(folder), task_id
        self.kind, self.slow_s, self.step = task_id.split(".", maxsplit=1)[0], slow_s, 0
        self.here = f"{task_id}@{os.getpid()}@{ray.get_runtime_context().get_node_id()}"
        self.mark("processes", f"{task_id}@{os.getpid()}@{began_at(os.getpid())}")
        self.mark("starting", self.here)
        time.sleep(slow_s)  # a slow constructor, so that its node can be killed in it
        if self.kind == "no save":
            self.save_state = None  # type: ignore[method-assign,assignment]

    def mark(self, kind: str, name: str) -> None:
        """Create a marker file."""
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    def work(self, steps: int) -> dict[str, Any]:
        """Work from the restored step to the last one."""
        began = self.step
        self.mark("working", self.here)
        while self.step < steps:
            time.sleep(0.05)  # the work itself
            self.step += 1
        if self.kind == "run raises":
            raise RuntimeError("its own fault")
        token = secrets.token_hex(8)
        self.mark("produced", f"{self.task_id}@{token}")
        return {"token": token, "began": began, "step": self.step}

    def save_state(self) -> dict[str, Any]:
        """The step, unless this kind fails to save it."""
        self.mark("saving", f"{self.here}@{secrets.token_hex(4)}")
        step = self.step
        time.sleep(self.slow_s)  # a slow save, so that its node can be killed in it
        match self.kind:
            case "save raises":
                raise OSError("cannot save")
            case "save hangs":
                time.sleep(60)  # longer than a save may take
            case "save dies":
                os._exit(3)
            case "saves too much":
                return {"step": step, "data": b"x" * 200_000}
        self.mark("saved", f"{self.task_id}@{os.getpid()}@{step}@{secrets.token_hex(4)}")
        return {"step": step}

    def restore_state(self, saved: dict[str, Any]) -> None:
        """Continue from the saved step."""
        self.mark("restored", f"{self.task_id}@{os.getpid()}@{saved['step']}")
        if self.kind == "restore raises":
            raise ValueError("cannot restore")
        self.step = saved["step"]


class Round:
    """A scheduler of its own, some kills, and the checks after them."""

    def __init__(self, cluster: Cluster, folder: Path, url: str, rng: random.Random) -> None:
        self.cluster, self.folder, self.rng = cluster, folder, rng
        (folder / "processes").mkdir(parents=True)
        self.name = folder.name
        self.head = ray.get_runtime_context().get_node_id()
        settings = SchedulerSettings(
            name=self.name,
            namespace=NAMESPACE,
            detached=True,
            state_path=url,
            journal=JournalSettings(saved_state_bytes=SAVED_BYTES),
            node_strategy="spread",
        )
        connect(settings, node_id=rng.choice(self.nodes()))
        self.mesh = RayScheduler.attach(self.name, namespace=NAMESPACE)
        self.mesh.create_pool("pool", resources={"cpu": float(NODES * CPUS)})
        self.mesh.update_preemption_policy(save_timeout=SAVE_S, cancel_timeout=2.0)
        self.watch = DuplicateWatch(folder)
        self.tasks: list[str] = []
        self.submit(FIRST, 0)

    def nodes(self) -> list[str]:
        """The nodes that may be killed."""
        return sorted(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != self.head)

    def submit(self, number: int, urgent_ones: int) -> None:
        """Tasks of all kinds, and urgent ones that evict some of them."""
        rng, specs = self.rng, []
        for nth in range(number):
            urgent = nth < urgent_ones
            kind = "good" if urgent else rng.choices(list(KINDS), list(KINDS.values()))[0]
            task_id = f"{kind}.{'urgent' if urgent else 'low'}-{len(self.tasks)}"
            self.tasks.append(task_id)
            specs.append(
                {
                    "task_id": task_id,
                    "pool_name": "pool",
                    "actor_class": Task,
                    "resources": {"cpu": 1.0},
                    "priority": 9.0 if urgent else 0.0,
                    "actor_args": [task_id, str(self.folder), rng.choice((0.0, 0.3, 1.0))],
                    "agent_name": f"on-{task_id}",
                    "run": "work",
                    "run_args": (10 if urgent else rng.randrange(40, 200),),
                    "queue": True,
                    "max_retries": RETRIES.get(kind, 30),
                    "on_preempted": "requeue",
                    "on_restore_failure": "restart",
                }
            )
        answer = self.mesh.submit_many(specs)
        if not answer["success"]:
            raise DrillFailed(f"refused: {answer['error']}")

    def kill(self, moment: str, *, with_supervisor: bool) -> str:
        """Kill a node at a moment, and replace it; what was killed."""
        before = {each: self.there(each) for each in MOMENTS}
        self.submit(TASKS, URGENT)
        supervisor = self.mesh.about()["node_id"]
        wanted = [n for n in self.nodes() if (n == supervisor) == with_supervisor] or self.nodes()
        found, victim = self.at(moment, before, wanted) or ("no moment", self.rng.choice(wanted))
        power_off(self.cluster, victim)
        known_dead(victim)
        self.cluster.add_node(**NODE)
        self.cluster.wait_for_nodes()
        return f"{found}, {'with' if victim == supervisor else 'without'} the supervisor"

    def at(
        self, moment: str, before: dict[str, set[str]], nodes: list[str]
    ) -> tuple[str, str] | None:
        """The moment, and the node of those on which something new is in it; after some seconds any other
        moment; None: there is none.
        """
        began, moments = time.monotonic(), [moment]
        while time.monotonic() < began + 3 * MOMENT_S:
            for each in moments:
                for name in sorted(self.there(each) - before[each]):
                    if (node := name.split("@")[2]) in nodes:
                        time.sleep(self.rng.uniform(0.0, 0.8))  # somewhere in the middle
                        return each, node
            time.sleep(0.01)  # markers notify nobody
            if time.monotonic() > began + MOMENT_S and len(moments) == 1:
                moments = list(MOMENTS)
                before = {each: self.there(each) for each in MOMENTS}
        return None

    def there(self, moment: str) -> set[str]:
        if moment != "preempting":
            return marks(self.folder, moment)
        agents = {agent["name"]: agent for agent in self.mesh.list_agents()["agents"]}
        evicted = [t for t in self.mesh.list_tasks()["tasks"] if t["phase"] == "preempting"]
        return {
            f"{task['task_id']}@0@{agents[task['agent_name']]['node_id']}"
            for task in evicted
            if task["agent_name"] in agents
        }

    def close(self) -> None:
        """Look at its processes no more."""
        self.watch.close()

    def check(self) -> collections.Counter[str]:
        """Every task has ended as it had to, and its record is true; how many ended in each way."""
        waited = self.mesh.wait(self.tasks, timeout=ENDS_S)
        if waited["pending"]:
            told = [self.mesh.explain(task_id) for task_id in waited["pending"][:3]]
            raise DrillFailed(f"never ended: {waited['pending']}: {told}")
        wrong = list(self.watch.twice)
        for status in waited["tasks"]:
            with contextlib.suppress(KeyError):
                wrong += self.wrong_end(status)
                continue
            wrong.append(f"incomplete: {status}")
        attempts = self.mesh.history(limit=10_000, with_events=True)["attempts"]
        by_task = collections.defaultdict(list)
        for attempt in sorted(attempts, key=lambda a: a["cursor"]):
            by_task[attempt["task_id"]].append(attempt)
        for status in waited["tasks"]:
            wrong += self.wrong_record(status, by_task[status["task_id"]])
        wrong += self.wrong_preemptions()
        until(lambda: not self.mesh.list_agents()["agents"], "agents stay", 30.0)
        until(lambda: not agent_processes(self.folder), "processes stay", 30.0)
        used = self.mesh.list_pools()["pools"][0]["used"].get("cpu", 0.0)
        if used:
            wrong.append(f"{used} CPUs are used by nobody")
        if wrong:
            raise DrillFailed("\n".join(wrong))
        self.mesh.shutdown()
        counts = collections.Counter(status["state"] for status in waited["tasks"])
        counts["attempts"] = len(attempts)
        counts["evictions"] = sum(a["evicted_at"] is not None for a in attempts)
        counts["lost attempts"] = sum(a["state"] == "lost" for a in attempts)
        return counts

    def wrong_end(self, status: dict[str, Any]) -> list[str]:
        """What is wrong with how a task has ended."""
        task_id = status["task_id"]
        if task_id.startswith("run raises"):
            own = "its own fault" in status.get("error", "")
            # Its node was lost in its last attempt, after it had failed by itself.
            lost = status.get("failures", 0) >= 1 and status.get("reason") != "run_failed"
            return [] if lost or (status["state"] == "failed" and own) else [f"{status}"]
        failed = status["state"] in ("failed", "lost") and status.get("failures", 0) >= 2
        if task_id.startswith("restore raises") and failed:
            return []
        if status["state"] != "completed":
            return [f"not completed: {status}"]
        result = self.mesh.result(task_id)["result"]
        tokens = {
            n.split("@")[1] for n in marks(self.folder, "produced") if n.split("@")[0] == task_id
        }
        saved = {n.split("@")[2] for n in marks(self.folder, "saved") if n.split("@")[0] == task_id}
        wrong = []
        if result["token"] not in tokens:
            wrong.append(f"{task_id}: a result of no run: {result}")
        if result["began"] and str(result["began"]) not in saved:
            wrong.append(f"{task_id} began at {result['began']}, saved were {saved}")
        return wrong

    def wrong_record(self, status: dict[str, Any], attempts: list[dict[str, Any]]) -> list[str]:
        """What in the history of a task is not true."""
        task_id, wrong = status["task_id"], []
        kind = task_id.split(".")[0]
        if not attempts or attempts[-1]["state"] != status["state"]:
            return [f"{task_id} is {status['state']}, its history {attempts[-1:]}"]
        restored = [n for n in marks(self.folder, "restored") if n.split("@")[0] == task_id]
        saved = [n for n in marks(self.folder, "saved") if n.split("@")[0] == task_id]
        for attempt in attempts:
            events = [event["kind"] for event in attempt["events"]]
            about = f"{task_id}, attempt {attempt['attempt']}, {attempt['state']}: "
            if {"saved", "not_saved"} <= set(events):
                wrong.append(f"{about}saved and not saved: {events}")
            if "saved" in events and (kind in NEVER_SAVED or not saved):
                wrong.append(f"{about}it never saved: {events}")
            if attempt["restored"] and not restored:
                wrong.append(f"{about}restored, but restore_state was never called")
            if attempt["restored"] and kind in NEVER_SAVED:
                wrong.append(f"{about}restored, but nothing was saved")
            if attempt["state"] in ("queued", "starting", "running", "preempting", "unknown"):
                wrong.append(f"{about}it has not ended: {events}")
            worked = (attempt["started_at"] or 0) and attempt["ran_s"] > 0.2
            unsaved = attempt["state"] == "preempted" and worked and attempt["saved_at"] is None
            if unsaved and not attempt["lost_s"]:
                wrong.append(f"{about}nothing was saved, and lost are {attempt['lost_s']} s")
        last = attempts[-1]
        if status["state"] == "completed":
            began = self.mesh.result(task_id)["result"]["began"]
            # One that is evicted as soon as it works is restored at step 0.
            restored_steps = {int(name.split("@")[2]) for name in restored}
            if began not in (restored_steps if last["restored"] else {0}):
                wrong.append(f"{task_id} began at step {began}, restored: {last['restored']}")
        # A start for which too little became free gives its claim back, and counts as no attempt.
        numbers = [each["attempt"] for each in attempts if each["state"] != "returned"]
        if numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"{task_id} has the attempts {numbers}: {attempts}")
        evicted = sum(attempt["state"] == "preempted" for attempt in attempts)
        if evicted != status.get("preemptions", 0):
            wrong.append(f"{task_id}: {evicted} evictions in the history, counted {status}")
        return wrong

    def wrong_preemptions(self) -> list[str]:
        """What in the record of preemptions is not true."""
        wrong = []
        for row in self.mesh.list_preemptions(limit=1000)["preemptions"]:
            kind = row["task_id"].split(".")[0]
            if row.get("state_saved") and kind in NEVER_SAVED:
                wrong.append(f"never saved: {row}")
            if row["state_saved"] and row.get("save_error"):
                wrong.append(f"saved with an error: {row}")
        return wrong


@contextlib.contextmanager
def started() -> Any:
    """A cluster whose head has no resources, and nodes that may be killed."""
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "_system_config": FAST}
    cluster = Cluster(initialize_head=True, head_node_args=head, connect=False)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        for _ in range(NODES):
            cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


class Tally:
    """What was killed, how tasks ended, and what was wrong."""

    def __init__(self, seed: str, kills: int) -> None:
        self.seed, self.most, self.rng = seed, kills, random.Random(seed)
        self.began = time.monotonic()
        self.kills: collections.Counter[str] = collections.Counter()
        self.ends: collections.Counter[str] = collections.Counter()

    def round(self, current: Round) -> bool:
        """Make the kills of a round and check it; whether nothing was wrong."""
        try:
            for nth in range(min(KILLS, self.most - self.kills.total())):
                told = current.kill(self.rng.choice(MOMENTS), with_supervisor=nth % 2 == 1)
                self.kills[told] += 1
                passed_s = time.monotonic() - self.began
                print(f"{passed_s:7.1f} s  {self.kills.total():4d}  {told}", flush=True)
            self.ends += current.check()
        except DrillFailed as failed:
            print(f"WRONG, DRILL_SEED={self.seed}, {current.name}: {failed}", flush=True)
            return False
        return True


def main() -> int:
    """Rounds of kills; the exit status is 1 if anything was wrong."""
    seed = os.environ.get("DRILL_SEED") or secrets.token_hex(4)
    tally = Tally(seed, int(os.environ.get("DRILL_KILLS", "200")))
    limit_s = float(os.environ.get("DRILL_SECONDS", "inf"))
    print(f"node kills: {tally.most}, DRILL_SEED={seed}", flush=True)
    number, right = 0, True
    with database() as url, tempfile.TemporaryDirectory() as folder:
        if url is None:
            print("skipped: no PostgreSQL server or no psycopg is installed", flush=True)
            return 0
        with started() as cluster:
            while right and tally.kills.total() < tally.most:
                if time.monotonic() - tally.began > limit_s:
                    break
                current = Round(cluster, Path(folder) / f"round-{number}", url, tally.rng)
                with contextlib.closing(current):
                    right = tally.round(current)
                number += 1
            if not right and (keep := os.environ.get("DRILL_KEEP")):
                shutil.copytree(folder, keep, dirs_exist_ok=True)
    print(json.dumps({"seed": seed, "kills": tally.kills, "ends": tally.ends}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
