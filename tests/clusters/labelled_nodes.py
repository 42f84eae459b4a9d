"""Agents on nodes by label, on three nodes; told as one line of JSON; see test_labelled_nodes.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import ray

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import three_nodes
from tests.clusters.three_nodes import Placed
from tests.integration.polling import until


def submitted(mesh: RayScheduler, task_id: str, priority: float, **options: Any) -> dict[str, Any]:
    """The answer without the handle, where the agent really is, and how long it took."""
    began = time.monotonic()
    answer: Any = mesh.submit_task_with_preemption(
        task_id, "pool", Placed, {"cpu": 1.0, "gpu": 1.0}, priority, **options
    )
    answer["seconds"] = time.monotonic() - began
    handle = answer.get("agent", {}).pop("handle", None)
    if handle is not None:
        answer["really_on"] = ray.get(handle.where.remote())
    return dict(answer)


def model(name: str) -> dict[str, Any]:
    """The options of an agent that needs this model."""
    return {"ray_options": {"accelerator_type": name}}


def main() -> None:
    """Evict the holder of the model that is asked for, and nobody for one that no node has."""
    with three_nodes(({}, {"zone": "b"}), ("A100", "H100")):
        mesh = RayScheduler("labels")
        until(lambda: len(mesh.cluster_snapshot()["nodes"]) == 3, "the nodes are not seen")
        mesh.create_pool("pool", resources={"cpu": 8.0, "gpu": 2.0})
        told: dict[str, Any] = {
            "models": {
                node["NodeID"]: name.partition(":")[2]
                for node in ray.nodes()
                for name in node["Resources"]
                if name.startswith("accelerator_type:")
            },
            "none": submitted(mesh, "none", 30.0, **model("B200")),
            "dry none": submitted(mesh, "none", 30.0, **model("B200"), dry_run=True),
            "low a": submitted(mesh, "low-a", 1.0, **model("A100")),
            "low h": submitted(mesh, "low-h", 1.0, ray_options={"label_selector": {"zone": "b"}}),
            "dry h": submitted(mesh, "top", 30.0, **model("H100"), dry_run=True),
            "top h": submitted(mesh, "top", 30.0, **model("H100")),
        }
        mesh.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
