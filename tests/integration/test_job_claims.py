"""What the drivers of a job hold in a real Ray counts against the job's claim, and not as external usage."""

from __future__ import annotations

import sys

import ray

from tests.integration.polling import until

#: A driver with an actor and a placement group, which hold 3 CPUs together until the job is cancelled.
DRIVER = """
import time

import ray
from ray.util.placement_group import placement_group

ray.init()


@ray.remote(num_cpus=2)
class Plain:
    def ping(self):
        return True


actor, group = Plain.remote(), placement_group([{"CPU": 1}])
ray.get([actor.ping.remote(), group.ready()])
print("holds 3", flush=True)
time.sleep(600)  # there to be ended
"""


def test_what_the_drivers_of_a_job_hold_is_within_its_claim(scheduler, tmp_path):
    def node():
        (found,) = scheduler.cluster_snapshot()["nodes"]
        return found

    def external_and_free():
        row = node()
        return row["external_usage"].get("cpu"), row["free"]["cpu"]

    @ray.remote(num_cpus=1)
    class Foreign:
        def ping(self):
            return True

    script = tmp_path / "train.py"
    script.write_text(DRIVER, encoding="utf-8")
    scheduler.create_pool("pool", resources={"cpu": 8.0})
    command = [sys.executable, str(script)]
    answer = scheduler.submit_job("train", command, "pool", {"cpu": 4.0})
    assert answer["success"], answer
    foreign = Foreign.remote()
    ray.get(foreign.ping.remote())
    until(lambda: node()["external_usage"].get("cpu") == 1.0, "the claim hides foreign work")
    until(lambda: "holds 3" in "".join(scheduler.job_logs("train")), "the driver holds nothing", 60)
    used = ray.cluster_resources()["CPU"] - 4.0
    until(lambda: ray.available_resources()["CPU"] == used, "Ray does not say so yet")
    # One look may have what was free before the driver took its own, and then misses the foreign work.
    until(lambda: external_and_free() == (1.0, 3.0), lambda: str(node()))
    (job,) = scheduler.external_usage()["jobs"]
    assert job["job_id"] == ray.get_runtime_context().get_job_id()
    assert scheduler.cancel_task("train")["success"]
    ray.kill(foreign)
    until(lambda: not node()["external_usage"], "external usage of work that has ended")
    until(lambda: node()["free"]["cpu"] == 8.0, "the claim of a job that has ended is held")
