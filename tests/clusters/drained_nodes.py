"""A task moves off a node that is drained, first by the scheduler, then by Ray, told as one line of JSON.

A program of its own, because a process can be connected to one Ray only; see test_drain.py.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import ray
from ray.core.generated import autoscaler_pb2

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import three_nodes
from tests.clusters.three_nodes import all_free
from tests.integration.agents import Counter
from tests.integration.polling import until

DEADLINE_S = 120
#: Seconds for a move, with the first process that a node starts.
MOVES_S = 60.0


def drain_by_ray(node_id: str) -> bool:
    """Have Ray drain a node, as it does when a spot instance is about to be reclaimed."""
    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    deadline_ms = int((time.time() + DEADLINE_S) * 1000)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, _ = client.drain_node(node_id, reason, "spot instance is reclaimed", deadline_ms)
    return bool(accepted)


def running_elsewhere(mesh: RayScheduler, node_id: str) -> dict[str, Any] | None:
    """The task's agent, once it runs on another node."""
    agents = [a for a in mesh.list_agents()["agents"] if a["name"] == "mover"]
    moved = [a for a in agents if a["state"] == "running" and a["node_id"] != node_id]
    return dict(moved[0]) if moved else None


def shown(drain: dict[str, Any]) -> dict[str, Any]:
    """What a drain says of its cause and progress."""
    return {key: drain[key] for key in ("node_id", "by_ray", "agents", "done")}


def main() -> None:
    """Drain the node of a counting task twice; it counts on where it was."""
    with three_nodes():
        mesh = RayScheduler("drained")
        until(lambda: all_free(mesh), "the nodes are not seen")
        mesh.cordon_node(ray.get_runtime_context().get_node_id())
        mesh.create_pool("pool", resources={"cpu": 8.0})
        told: dict[str, Any] = {}
        answer = mesh.submit_task_with_preemption(
            "moving", "pool", Counter, {"cpu": 3.0}, agent_name="mover"
        )
        ray.get(answer["agent"]["handle"].add.remote(7))
        first = answer["agent"]["node_id"]

        told["drain"] = mesh.drain_node(first)["success"]
        agent = until(lambda: running_elsewhere(mesh, first), "it did not move", MOVES_S)
        told["after_drain"] = ray.get(agent["handle"].add.remote(1))
        told["status"] = [shown(drain) for drain in mesh.drain_status()["drains"]]
        told["first"], told["second"] = first, agent["node_id"]
        mesh.undrain_node(first)
        told["undrained"] = mesh.drain_status()["drains"]

        told["accepted"] = drain_by_ray(agent["node_id"])
        second = agent["node_id"]
        agent = until(
            lambda: running_elsewhere(mesh, second), "it did not move off Ray's node", MOVES_S
        )
        told["after_ray"] = ray.get(agent["handle"].add.remote(1))
        told["third"] = agent["node_id"]
        (drain,) = mesh.drain_status()["drains"]
        told["ray_status"] = shown(drain)
        told["ray_deadline"] = drain["deadline"] - drain["started_at"]
        told["refused"] = mesh.undrain_node(second)["reason"]
        records = mesh.list_preemptions(task_id="moving")["preemptions"]
        told["records"] = [
            {key: row[key] for key in ("reason", "state_saved", "requeued", "lost_work")}
            for row in records
        ]
        mesh.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
