"""Pools with flavors on two nodes, with an H100 and an A100: each kind of work takes the first in which
it starts, and an owner takes back its H100; see test_labelled_nodes.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.util import placement_group_table

from schedulemesh.core import RayScheduler
from tests.clusters.models_on_nodes import A100, DRIVER, H100, NEED
from tests.clusters.nodes import three_nodes
from tests.clusters.three_nodes import Placed
from tests.integration.polling import until

FLAVORS = [{"name": "h100", "label_selector": H100}, {"name": "a100", "label_selector": A100}]


def flavor_of(mesh: RayScheduler, task_id: str) -> str:
    """In which flavor a task runs, as listings show it."""
    return next(row["flavor"] for row in mesh.list_tasks()["tasks"] if row["task_id"] == task_id)


def gang(mesh: RayScheduler, task_id: str, pool: str, **more: Any) -> dict[str, Any]:
    """A gang of two members that share a GPU: its flavor, and where Ray runs it."""
    answer: Any = mesh.submit_task_with_preemption(
        task_id, pool, Placed, {"cpu": 1.0, "gpu": 0.5}, replicas=2, **more
    )
    handles = [member.pop("handle") for member in answer["agents"]]
    where = ray.get([handle.where.remote() for handle in handles])
    preempted = [victim["task_id"] for victim in answer["preempted"]]
    return {"where": where, "flavor": flavor_of(mesh, task_id), "preempted": preempted}


def job(mesh: RayScheduler, name: str) -> dict[str, Any]:
    """What the driver of a job has printed."""
    mesh.submit_job(name, [sys.executable, "-c", DRIVER], "guests", NEED, queue=True)
    mesh.wait(name, timeout=120)
    return dict(json.loads("".join(mesh.job_logs(name)).strip().splitlines()[-1]))


def main() -> None:
    """A lease of the guests borrows the H100, so that their job runs on their own A100; then the owner asks
    for its H100 and takes it back, and a gang of the guests gets by with the A100.
    """
    with three_nodes((A100, H100), ("A100", "H100")):
        mesh = RayScheduler("flavors")
        until(lambda: len(mesh.cluster_snapshot()["nodes"]) == 3, "the nodes are not seen")
        shared: dict[str, Any] = {"flavors": FLAVORS, "cohort": "all"}
        mesh.create_pool("owners", resources={"cpu": 4.0, "gpu@h100": 1.0}, **shared)
        mesh.create_pool("guests", resources={"cpu": 4.0, "gpu@a100": 1.0}, **shared)
        lease = mesh.lease("lease", "guests", [[NEED]])
        (group,) = lease.placement_groups
        told: dict[str, Any] = {
            "models": {
                node["NodeID"]: name.partition(":")[2]
                for node in ray.nodes()
                for name in node["Resources"]
                if name.startswith("accelerator_type:")
            },
            "lease": list(placement_group_table(group)["bundles_to_node_id"].values()),
            "lease flavor": flavor_of(mesh, "lease"),
            "job beside the lease": job(mesh, "beside"),
            "owner": gang(mesh, "owner", "owners", label_selector=H100),
            "guest": gang(mesh, "guest", "guests"),
            "used": {row["name"]: row["used"] for row in mesh.list_pools()["pools"]},
        }
        mesh.submit_job("waits", ["true"], "guests", NEED, queue=True)
        told["explained"] = [
            (one["flavor"], one["reason"]) for one in mesh.explain("waits")["alternatives"]
        ]
        mesh.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
