"""The GPUs that drivers of jobs see, on real Ray: no two plain scripts the same, others none."""

from __future__ import annotations

import sys

import pytest
import ray

from schedulemesh.errors import JobFailedError
from tests.integration.polling import complete_lines, until

#: What a script finds that does not use Ray, and that stays for a while, so that others run beside it.
PLAIN = (
    "import os, time; print('sees', os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep({})"
)
#: A driver whose actor takes all GPUs of the claim.
CONNECTS = """
import os, ray
ray.init()

@ray.remote(num_cpus=0, num_gpus={gpus})
class Worker:
    def sees(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]

print("sees", os.environ["CUDA_VISIBLE_DEVICES"])
print("worker", ray.get(Worker.remote().sees.remote()), flush=True)
"""

#: A driver that is connected to Ray for a moment only.
BRIEFLY = """
import os, time, ray
ray.init()
ray.shutdown()
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
time.sleep(600)  # it stays, so that others run beside it
"""


@pytest.fixture
def pool(scheduler):
    scheduler.ensure_pool("p", resources={"cpu": 4, "gpu": 2})
    return scheduler


def submit(mesh, task_id, script, gpus, **fields):
    resources = {"cpu": 1, "gpu": gpus}
    answer = mesh.submit_job(task_id, [sys.executable, "-c", script], "p", resources, **fields)
    assert answer["success"], answer


def said(mesh, task_id, word):
    """What follows a word in the log of a job, once it is there."""

    def found():
        lines = complete_lines("".join(mesh.job_logs(task_id)))
        return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]

    return until(found, lambda: "".join(mesh.job_logs(task_id)), 60)[0]


def test_two_plain_scripts_see_different_gpus_and_one_without_gpus_none(pool):
    for task_id, gpus in (("one", 1), ("two", 1), ("none", 0)):
        submit(pool, task_id, PLAIN.format(600), gpus)

    assert {said(pool, "one", "sees"), said(pool, "two", "sees")} == {"0", "1"}
    assert said(pool, "none", "sees") == ""
    assert "all that it claims here" in said(pool, "one", "[schedulemesh]")
    used = {job["task_id"]: job["used"] for job in pool.jobs()["jobs"]}
    assert used == {"one": {"gpu": 1.0}, "two": {"gpu": 1.0}, "none": {}}
    assert pool.external_usage()["jobs"] == []

    for task_id in ("one", "two", "none"):
        pool.cancel_task(task_id)
    until(lambda: ray.available_resources().get("GPU") == 2, "the GPUs were not given back")


def test_what_a_driver_connects_to_gets_the_gpus_of_the_claim(pool):
    submit(pool, "train", CONNECTS.format(gpus=2), 2)
    assert said(pool, "train", "sees") == "0,1"
    assert sorted(said(pool, "train", "worker").split(",")) == ["0", "1"]
    assert pool.wait(["train"], timeout=60)["pending"] == []
    assert pool.result("train")["result"]["exit_code"] == 0


def test_a_script_that_was_connected_for_a_moment_sees_another_gpu_than_the_next_one(pool):
    submit(pool, "one", BRIEFLY, 1)
    first = said(pool, "one", "sees")
    again = "[schedulemesh] the driver's connection to Ray has ended;"
    assert said(pool, "one", again) == f"GPU {first} of the claim is held for it again"
    submit(pool, "two", PLAIN.format(600), 1)
    assert {first, said(pool, "two", "sees")} == {"0", "1"}
    for task_id in ("one", "two"):
        pool.cancel_task(task_id)


def test_a_part_of_the_claim_is_the_drivers_until_it_ends(pool):
    submit(pool, "train", CONNECTS.format(gpus=1), 2, driver_gpus=1)
    driver, worker = said(pool, "train", "sees"), said(pool, "train", "worker")
    assert {driver, worker} == {"0", "1"}
    assert f"holds 0 CPUs and GPU {driver} of its claim" in said(pool, "train", "[schedulemesh]")


def test_a_driver_gets_no_more_than_its_job_claims_by_default(scheduler):
    scheduler.ensure_pool("p", resources={"cpu": 4, "gpu": 2}, target_agents=2)
    command = [sys.executable, "-c", PLAIN.format(0)]
    assert scheduler.submit_job("train", command, "p", driver_gpus=2)["success"]
    assert scheduler.wait(["train"], timeout=60)["pending"] == []
    with pytest.raises(JobFailedError, match=r"2 GPUs .* claims 1 GPUs and 2 CPUs"):
        scheduler.result("train")
    assert ray.available_resources().get("GPU") == 2
