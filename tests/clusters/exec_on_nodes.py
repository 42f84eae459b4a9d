"""Commands inside jobs and leases on other nodes than the supervisor's, told as one line of JSON; see
test_exec_on_nodes.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import ray

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import three_nodes
from tests.drills.nodes import power_off
from tests.integration.polling import until

#: A driver that is there to be ended.
DRIVER = [
    sys.executable,
    "-c",
    "import time; print('begun', flush=True); time.sleep(600)",  # there to be ended
]


def main() -> None:
    """Run a command in a job and in a lease on another node, and lose the node during a further one."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, three_nodes() as cluster:
        mesh = RayScheduler("exec", state_path=Path(folder, "state"))
        until(lambda: len(mesh.cluster_snapshot()["nodes"]) == 3, "the nodes are not seen")
        mesh.create_pool("pool", resources={"cpu": 100.0})
        mesh.update_preemption_policy(allow_exec=True)
        head = ray.get_runtime_context().get_node_id()
        mesh.cordon_node(head)
        assert mesh.submit_job("j", DRIVER, "pool", {"cpu": 1}, max_retries=0)["success"]
        until(lambda: "begun" in "".join(mesh.job_logs("j")), "the driver does not begin", 90)
        (job,) = mesh.jobs()["jobs"]
        told["elsewhere"] = job["node_id"] != head
        told["job"] = mesh.exec_in_task("j", ["sh", "-c", "echo out; exit 3"], timeout=60)
        with mesh.lease("l", "pool", [[{"cpu": 1}]]) as lease:
            lease.wait(60)
            told["lease"] = mesh.exec_in_task("l", ["sh", "-c", "echo $SCHEDULEMESH_LEASE"])
        answers: list[Any] = []
        script = f"echo > {folder}/begun; exec sleep 600"
        running = threading.Thread(
            target=lambda: answers.append(mesh.exec_in_task("j", ["sh", "-c", script]))
        )
        running.start()
        until(Path(folder, "begun").exists, "the command does not begin", 60)
        power_off(cluster, job["node_id"])
        running.join(120)
        told["lost"] = answers[0] if answers else None
        mesh.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
