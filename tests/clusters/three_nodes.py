"""Stories on a cluster of three nodes of four CPUs, each told as one line of JSON; see test_cluster.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import CPUS, three_nodes
from tests.integration.agents import Plain
from tests.integration.polling import until


class Placed(Plain):
    """Says where it is."""

    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def all_free(mesh: RayScheduler) -> bool:
    """Whether the scheduler sees all nodes, and that nothing uses them."""
    nodes = mesh.cluster_snapshot()["nodes"]
    return [node["free"].get("cpu") for node in nodes] == [CPUS] * 3


def submit(mesh: RayScheduler, task_id: str, cpu: float, priority: float, **more: Any) -> Any:
    """The answer without the handle, which no other process could use."""
    answer: Any = mesh.submit_task_with_preemption(
        task_id=task_id,
        pool_name="pool",
        resources={"cpu": cpu},
        priority=priority,
        actor_class=Placed,
        agent_name=f"on-{task_id}",
        **more,
    )
    if answer["success"] and not more.get("dry_run"):
        where = ray.get(answer["agent"].pop("handle").where.remote())
        answer["really_on"] = where
    answer.get("agent", {}).pop("handle", None)
    return answer


def main() -> None:
    """Fill every node half; then ask for whole ones."""
    with three_nodes():
        mesh = RayScheduler("three", node_strategy="spread")
        until(lambda: all_free(mesh), "the nodes are not seen")
        mesh.create_pool("pool", resources={"cpu": 100.0})
        told: dict[str, Any] = {}
        told["half"] = [submit(mesh, f"half-{i}", CPUS / 2, 1.0 + i) for i in range(3)]
        told["too_high"] = submit(mesh, "vain", CPUS, 1.0)
        told["bigger_than_any"] = submit(mesh, "huge", 2 * CPUS, 99.0)
        told["tasks_before"] = sorted(t["task_id"] for t in mesh.list_tasks()["tasks"])
        told["dry"] = submit(mesh, "whole", CPUS, 9.0, dry_run=True)
        told["whole"] = submit(mesh, "whole", CPUS, 9.0)
        told["tasks_after"] = sorted(t["task_id"] for t in mesh.list_tasks()["tasks"])

        # a node that is closed takes nobody, and who is there stays
        for half in ("half-1", "half-2"):
            node = told["half"][int(half[-1])]["really_on"]
            told[f"cordon-{half}"] = mesh.cordon_node(node)["success"]
        told["cordoned"] = submit(mesh, "late", CPUS / 2, 1.0)
        told["tasks_cordoned"] = sorted(t["task_id"] for t in mesh.list_tasks()["tasks"])
        mesh.cordon_node(told["half"][2]["really_on"], cordoned=False)
        told["opened"] = submit(mesh, "late", CPUS / 2, 1.0)
        mesh.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
