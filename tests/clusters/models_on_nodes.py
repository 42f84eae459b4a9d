"""A job, a gang and a lease that take an H100, else an A100, on nodes with both; see test_cluster.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.util import placement_group_table

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import three_nodes
from tests.clusters.three_nodes import Placed
from tests.integration.polling import until

MODEL = "ray.io/accelerator-type"
#: What is asked for: the second alternative of a job and of a lease says its amount, too.
H100, A100 = {MODEL: "H100"}, {MODEL: "A100"}
NEED = {"cpu": 1.0, "gpu": 1.0}
#: A driver that says where Ray runs an actor with the selector of its job, and what it was told.
DRIVER = """
import json, os, ray
ray.init()
told = json.loads(os.environ["SCHEDULEMESH_LABEL_SELECTOR"])

@ray.remote(num_cpus=1, num_gpus=1, label_selector=told)
class Worker:
    def where(self):
        return ray.get_runtime_context().get_node_id()

where = ray.get(Worker.remote().where.remote())
alternative = os.environ.get("SCHEDULEMESH_ALTERNATIVE", "")
print(json.dumps({"where": where, "told": told, "alternative": alternative}))
"""


def job(mesh: RayScheduler, name: str) -> dict[str, Any]:
    """What the driver of a job has printed, and where the job ran."""
    other = {"label_selector": A100, "resources": NEED}
    answer: Any = mesh.submit_job(
        name,
        [sys.executable, "-c", DRIVER],
        "pool",
        NEED,
        label_selector=H100,
        fallback_strategy=[other],
        queue=True,
    )
    mesh.wait(name, timeout=120)
    log = "".join(mesh.job_logs(name))
    return {"submitted": answer["success"], **json.loads(log.strip().splitlines()[-1])}


def gang(mesh: RayScheduler) -> dict[str, Any]:
    """Where the members of a gang are that take a model which no node has, else an A100."""
    answer: Any = mesh.submit_task_with_preemption(
        "gang",
        "pool",
        Placed,
        {"cpu": 1.0},
        replicas=2,
        label_selector={MODEL: "B200"},
        fallback_strategy=[{"label_selector": A100}],
    )
    handles = [member.pop("handle") for member in answer["agents"]]
    where = ray.get([handle.where.remote() for handle in handles])
    row = next(row for row in mesh.list_tasks()["tasks"] if row["task_id"] == "gang")
    mesh.complete_task("gang", end_agent=True)
    return {"where": where, "alternative": row["alternative"], "labels": row["label_selector"]}


def is_idle(mesh: RayScheduler) -> bool:
    """Whether the nodes are free, by the scheduler's own accounting and by Ray's."""
    nodes = mesh.cluster_snapshot()["nodes"]
    return all(
        node["free"] == node["total"] and not any(node["external_usage"].values()) for node in nodes
    )


def main() -> None:
    """A lease holds the only H100, so the others run on the A100; then a job takes the H100."""
    with three_nodes((A100, H100), ("A100", "H100")):
        mesh = RayScheduler("models")
        until(lambda: len(mesh.cluster_snapshot()["nodes"]) == 3, "the nodes are not seen")
        mesh.create_pool("pool", resources={"cpu": 8.0, "gpu": 2.0})
        lease = mesh.lease(
            "lease",
            "pool",
            [[NEED]],
            label_selector=H100,
            fallback_strategy=[{"label_selector": A100, "groups": [[NEED]]}],
        )
        (group,) = lease.placement_groups
        told: dict[str, Any] = {
            "models": {
                node["NodeID"]: name.partition(":")[2]
                for node in ray.nodes()
                for name in node["Resources"]
                if name.startswith("accelerator_type:")
            },
            "lease": list(placement_group_table(group)["bundles_to_node_id"].values()),
            "gang": gang(mesh),
            "job beside the lease": job(mesh, "beside"),
        }
        told["explain"] = mesh.explain("lease")["alternative"]
        lease.release()
        # Its group holds the H100 until Ray has removed it; a job takes what it can start on now.
        until(lambda: is_idle(mesh), "the lease does not end")
        told["job after the lease"] = job(mesh, "after")
        mesh.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
