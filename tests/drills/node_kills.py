"""Kill nodes in mid-eviction, mid-save, mid-start and mid-work, with and without the supervisor on them.

Meanwhile agents, gangs, jobs and arrays are evicted that cannot be saved, take too long, die or save too
much; then every task and its record are checked. ``make drill`` runs it, on a cluster of its own. Environment
variables: ``DRILL_KILLS`` (number of kills, default 200), ``DRILL_SEED`` (default random; it is printed),
``DRILL_TASKS`` (how many are submitted for each kill, and twice as many before the first; default 5),
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

import psutil
import ray
from ray.cluster_utils import Cluster

from schedulemesh.config.settings import JournalSettings, SchedulerSettings
from schedulemesh.core import RayScheduler
from schedulemesh.core.client.connection import connect
from tests.clusters.nodes import FAST
from tests.drills.batch import Submitter, named
from tests.drills.batch_check import BatchCheck
from tests.drills.checker import DuplicateWatch
from tests.drills.nodes import database, known_dead, power_off
from tests.drills.processes import DrillFailed, agent_processes, marks, until

NODES, CPUS, NAMESPACE = 3, 3, "nodes"
NODE = {"num_cpus": CPUS, "object_store_memory": 80_000_000}
#: Kills of a round; tasks that are submitted for each, and how many of these evict.
KILLS, URGENT = 8, 2
TASKS = int(os.environ.get("DRILL_TASKS", "5"))
MOMENTS = ("saving", "starting", "working", "preempting")
#: Seconds in which all tasks have to end once nothing is killed any more.
ENDS_S = 180.0
#: Seconds for which a moment is waited for.
MOMENT_S = 4.0
SAVE_S, SAVED_BYTES = 2.0, 100_000


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
        self.batch = Submitter(self.mesh, "pool", folder, rng)
        self.tasks: list[str] = []
        self.submit(2 * TASKS, 0)

    def nodes(self) -> list[str]:
        """The nodes that may be killed."""
        return sorted(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != self.head)

    def submit(self, number: int, urgent_ones: int) -> None:
        """Tasks of all kinds, and urgent ones that evict some of them."""
        for nth in range(number):
            urgent = nth < urgent_ones
            name = f"{len(self.tasks)}-{'urgent' if urgent else 'low'}"
            task_id = self.batch.random_id(name, kind="good" if urgent else "")
            steps = (
                10
                if urgent
                else self.rng.randrange(40, 160) // (2 if named(task_id).is_array else 1)
            )
            answer = self.batch.submit(task_id, 9.0 if urgent else 0.0, steps)
            if not answer["success"]:
                raise DrillFailed(f"refused: {answer['error']}")
            self.tasks.append(task_id)

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
                    if (node := self.node_of(name)) in nodes:
                        time.sleep(self.rng.uniform(0.0, 0.8))  # somewhere in the middle
                        return each, node
            time.sleep(0.01)  # markers notify nobody
            if time.monotonic() > began + MOMENT_S and len(moments) == 1:
                moments = list(MOMENTS)
                before = {each: self.there(each) for each in MOMENTS}
        return None

    def node_of(self, mark: str) -> str:
        """The node of the process that made a marker; the driver of a job does not know its own."""
        _, pid, node_id, *_ = mark.split("@")
        if node_id:
            return node_id
        with contextlib.suppress(psutil.NoSuchProcess):
            ancestors = {parent.pid for parent in psutil.Process(int(pid)).parents()}
            for node in self.cluster.worker_nodes:
                raylets = {each.process.pid for each in node.all_processes.get("raylet", ())}
                if raylets & ancestors:
                    return str(node.node_id)
        return ""

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
        check = BatchCheck(self.mesh, self.folder)
        statuses = check.wait(self.tasks, ENDS_S)
        wrong = list(self.watch.twice) + check.inconsistencies(statuses)
        until(lambda: not self.mesh.list_agents()["agents"], "agents stay", 30.0)
        until(lambda: not agent_processes(self.folder), "processes stay", 30.0)
        used = self.mesh.list_pools()["pools"][0]["used"].get("cpu", 0.0)
        if used:
            wrong.append(f"{used} CPUs are used by nobody")
        if wrong:
            raise DrillFailed("\n".join(wrong))
        attempts = self.mesh.history(limit=10_000)["attempts"]
        self.mesh.shutdown()
        counts = collections.Counter(status["state"] for status in statuses)
        counts += collections.Counter(named(task_id).shape for task_id in self.tasks)
        counts["attempts"] = len(attempts)
        counts["evictions"] = sum(a["evicted_at"] is not None for a in attempts)
        counts["lost attempts"] = sum(a["state"] == "lost" for a in attempts)
        return counts


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
