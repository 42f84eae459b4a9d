"""The driver of another Ray job: attaches to a scheduler or owns one, and submits until it is killed."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import ray

from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import Log
from tests.drills.batch_client import POOL, BatchClient
from tests.drills.clients import Client, Policy


def main() -> None:
    """Run ``python -m tests.drills.driver shares|owns namespace name log folder seed``."""
    how, namespace, name, log, folder, seed = sys.argv[1:]
    ray.init(log_to_driver=False, logging_level="ERROR")
    if how == "shares":
        mesh = RayScheduler.attach(name, namespace=namespace)
    else:
        mesh = RayScheduler(name, namespace=namespace)
        mesh.create_pool("driver", resources={"cpu": 2.0})
        mesh.create_pool(POOL, resources={"cpu": 2.0})
    name, own_log = Path(log).stem, Log(Path(log))
    client = Client(name, mesh, own_log, Path(folder), f"driver {seed}", Policy())
    batch = BatchClient(f"{name}-batch", mesh, own_log, Path(folder), f"batch {seed}", Policy())
    batch.submit_batch()
    for n in itertools.count():
        # The lowest priorities of all, and rising: it evicts only its own tasks.
        client.submit("driver", 0.1 + n * 0.01 if how == "shares" else n + 1.0)
        client.do(client.rng.choice(("save", "complete", "preempt", "save", "restore")))
        batch.do(batch.rng.choice(("read", "read", "submit_batch", "evict_batch")))


if __name__ == "__main__":
    main()
