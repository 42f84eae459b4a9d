"""Agents whose environment cannot be set up, on a Ray that tries once; tells as JSON what is said of them.

A program of its own, because how often Ray tries is configured where Ray is started. Its arguments are the
installers.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler

#: What is asked for; no index is, so that the answer comes at once, and without the internet.
ABSENT = "schedulemesh-has-no-such-package"
PACKAGES = ["--no-index", ABSENT]
#: Seconds for each: Ray may copy the virtual environment that it runs in first.
LIMIT_S = 300.0


def main() -> None:
    """One queued task for each installer."""
    os.environ["RUNTIME_ENV_RETRY_TIMES"] = "1"
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=80_000_000,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    mesh = SimpleScheduler("mesh", namespace="space")
    mesh.ensure_pool("pool", resources={"cpu": 2})
    told: dict[str, Any] = {}
    for installer in sys.argv[1:]:
        environment = {"runtime_env": {installer: PACKAGES}}
        resources = {"cpu": 1}
        mesh.submit(
            installer, "pool", AgentActor, resources=resources, queue=True, ray_options=environment
        )
        (row,) = mesh.wait(installer, timeout=LIMIT_S)["tasks"]
        log = "".join(mesh.scheduler.task_logs(installer, stream="stderr"))
        told[installer] = {"state": row["state"], "error": row.get("error"), "log": log}
    mesh.shutdown()
    ray.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
