"""A gang, a lease and a job in one rack: two nodes have the label, the head has none; see
test_labelled_nodes.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.util import placement_group_table

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import CPUS, three_nodes
from tests.clusters.three_nodes import Placed, all_free
from tests.integration.polling import until

RACK = {"rack": "r1"}


def gang(mesh: RayScheduler) -> list[str]:
    """Where the members of a gang are that one node cannot hold."""
    answer: Any = mesh.submit_task_with_preemption(
        "gang",
        "pool",
        Placed,
        {"cpu": 1.0},
        replicas=CPUS + 2,
        topology={"required": "rack"},
    )
    handles = [member.pop("handle") for member in answer["agents"]]
    where = ray.get([handle.where.remote() for handle in handles])
    mesh.complete_task("gang", end_agent=True)
    return list(where)


def lease(mesh: RayScheduler) -> list[str]:
    """Where the bundles of a lease are, each of a whole node."""
    granted = mesh.lease("lease", "pool", [[{"cpu": CPUS}] * 2], topology="preferred:rack")
    (group,) = granted.placement_groups
    where = list(placement_group_table(group)["bundles_to_node_id"].values())
    granted.release()
    return where


def is_running(mesh: RayScheduler, task_id: str) -> bool:
    """Whether a task runs."""
    rows = mesh.list_tasks()["tasks"]
    return any(row["task_id"] == task_id and row["phase"] == "running" for row in rows)


def main() -> None:
    """The same two nodes for each of them; a gang that the rack cannot hold is refused."""
    with three_nodes((RACK, RACK)):
        mesh = RayScheduler("racks")
        until(lambda: all_free(mesh), "the nodes are not seen")
        mesh.create_pool("pool", resources={"cpu": 3.0 * CPUS})
        mesh.update_preemption_policy(topology_levels=["rack"])
        nodes = mesh.cluster_snapshot()["nodes"]
        told: dict[str, Any] = {
            "racks": {node["node_id"]: node["topology"] for node in nodes},
            "gang": gang(mesh),
        }
        until(lambda: all_free(mesh), "the gang does not end")
        told["lease"] = lease(mesh)
        until(lambda: all_free(mesh), "the lease does not end")
        mesh.submit_job("job", "sleep 60", "pool", {"cpu": CPUS + 1.0}, topology="rack", queue=True)
        until(lambda: is_running(mesh, "job"), "the job does not run")
        told["job"] = {
            node["node_id"]: node["free"].get("cpu", 0.0)
            for node in mesh.cluster_snapshot()["nodes"]
        }
        mesh.cancel_task("job")
        told["too large"] = mesh.submit_task_with_preemption(
            "large", "pool", Placed, {"cpu": 1.0}, replicas=2 * CPUS + 1, topology="rack"
        )
        mesh.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
