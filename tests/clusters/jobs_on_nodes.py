"""Stories of jobs on a cluster of three nodes of four CPUs, told as one line of JSON; see
test_jobs_on_nodes.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import CPUS, three_nodes
from tests.drills.nodes import power_off
from tests.integration.agents import Plain
from tests.integration.polling import actors_in, process_exists, until

#: A driver whose work is on another node than its claim: a detached actor that takes a whole node.
DRIVER = """
import os
import sys
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

attempt, folder = os.environ["SCHEDULEMESH_ATTEMPT"], Path(sys.argv[1])
target = folder / f"target-{attempt}"
while not target.exists():
    time.sleep(0.02)  # between two looks at a file that the test writes, which has no event
ray.init()


@ray.remote(num_cpus=4)
class Worker:
    def pid(self):
        return os.getpid()


how = {"name": "work", "namespace": "outside", "lifetime": "detached"}
there = On(target.read_text(), soft=False)
worker = Worker.options(scheduling_strategy=there, **how).remote()
told = folder / f"part-{attempt}"
told.write_text(f"{os.getpid()} {ray.get(worker.pid.remote())}")
told.replace(folder / f"attempt-{attempt}")
time.sleep(600)  # there to be ended
"""


class Story:
    """A scheduler on the cluster, with one job on it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.head = ray.get_runtime_context().get_node_id()
        self.mesh = RayScheduler("nodes", state_path=folder / "state")
        until(lambda: len(self.nodes()) == 3, "the nodes are not seen")
        self.mesh.create_pool("pool", resources={"cpu": 100.0})

    def nodes(self) -> dict[str, Any]:
        """By id, what the scheduler says of each node."""
        return {row["node_id"]: row for row in self.mesh.cluster_snapshot()["nodes"]}

    def attempt(self, number: int) -> tuple[str, str, list[int]]:
        """Have an attempt work on another node than that of its runner, not on the head if there is a third:
        the node of its runner, that of the work, and its processes.
        """
        (job,) = until(lambda: self.running(number), lambda: f"{self.mesh.jobs()['jobs']}", 90)
        here = job["node_id"]
        others = self.nodes().keys() - {here} or {here}
        there = min(others, key=lambda node_id: node_id == self.head)
        target = self.folder / f"target-{number}"
        target.with_suffix(".part").write_text(there)
        target.with_suffix(".part").replace(target)
        told = self.folder / f"attempt-{number}"
        until(told.exists, lambda: f"attempt {number}: {self.mesh.jobs()['jobs']}", 90)
        return here, there, [int(pid) for pid in told.read_text().split()]

    def running(self, number: int) -> list[Any]:
        """The job, if it runs with this attempt."""
        jobs = self.mesh.jobs().get("jobs", ())
        return [job for job in jobs if (job["attempt"], job["state"]) == (number, "running")]

    def free(self, node_id: str) -> float:
        """The free CPUs of a node."""
        return float(self.nodes()[node_id]["free"].get("cpu", 0.0))


def the_claim_follows(story: Story) -> tuple[dict[str, Any], tuple[str, str, list[int]]]:
    """Submit the job; its claim moves to where its work is, so that its own node is free. Also returns the
    attempt.
    """
    mesh = story.mesh
    script = story.folder / "train.py"
    script.write_text(DRIVER, encoding="utf-8")
    mesh.cordon_node(story.head)
    command = [sys.executable, str(script), str(story.folder)]
    answer = mesh.submit_job("train", command, "pool", {"cpu": CPUS}, max_retries=2)
    assert answer["success"], answer
    here, there, pids = story.attempt(1)
    until(lambda: story.free(here) == CPUS, lambda: f"the claim stays on {here}: {story.nodes()}")
    until(lambda: story.free(there) == 0.0, lambda: f"{there} is not taken: {story.nodes()}")
    placed = mesh.submit_task_with_preemption("other", "pool", Plain, {"cpu": CPUS}, wait=30.0)
    (job,) = mesh.jobs()["jobs"]
    told = {
        "nodes": len({here, there, story.head}),
        "external": story.nodes()[there]["external_usage"],
        "other": placed["success"] and placed["agent"]["node_id"] == here,
        "claimed": job["claimed"] == {there: {"cpu": float(CPUS)}},
        "beyond_claim": job["beyond_claim"],
    }
    mesh.complete_task("other", end_agent=True)
    return told, (here, there, pids)


def a_node_fails(
    story: Story, node_id: str, pids: list[int], number: int
) -> tuple[dict[str, Any], tuple[str, str, list[int]]]:
    """A node fails in mid-job: the job returns, once, as this attempt. Also returns that."""
    power_off(story.cluster, node_id)
    until(lambda: node_id not in story.nodes(), "the node is still listed")
    attempt = story.attempt(number)
    again = attempt[2]
    (job,) = story.mesh.jobs()["jobs"]
    told = {
        "attempt": job["attempt"],
        "state": job["state"],
        "of_the_first": [pid for pid in pids if process_exists(pid)],
        "runs": all(map(process_exists, again)),
        "actors": actors_in("outside"),
    }
    return told, attempt


def main() -> None:
    """Tell the stories, one after the other, of the same job."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, three_nodes() as cluster:
        story = Story(cluster, Path(folder))
        told["follows"], (_, there, pids) = the_claim_follows(story)
        told["of_work"], (here, _, pids) = a_node_fails(story, there, pids, 2)
        story.mesh.cordon_node(story.head, cordoned=False)
        told["of_runner"], _ = a_node_fails(story, here, pids, 3)
        assert story.mesh.cancel_task("train")["success"]
        until(lambda: story.free(story.head) == CPUS, lambda: f"not free: {story.nodes()}")
        told["left"] = actors_in("outside")
        with contextlib.suppress(Exception):
            story.mesh.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
