"""What the drivers of a job hold in a real Ray counts against the job's claim, and not as external usage."""

from __future__ import annotations

import json

import msgspec
import ray

from schedulemesh.core.client import submissions
from schedulemesh.domain.agent import JobSpec
from tests.integration.agents import Counter
from tests.integration.drivers import start_driver
from tests.integration.polling import actors_in, until

#: A driver with an actor and a placement group, which hold 3 CPUs together.
DRIVER = """
from ray.util.placement_group import placement_group

@ray.remote(num_cpus=2)
class Plain:
    def ping(self):
        return True

actor, group = Plain.remote(), placement_group([{"CPU": 1}])
ray.get([actor.ping.remote(), group.ready()])
print("holds 3", flush=True)
sys.stdin.readline()
"""


def submit_job(scheduler, monkeypatch, task_id, cpus):
    """A job whose runner is an agent of the tests; its driver is started by the test."""
    described = submissions.task_submission

    def as_job(caller, given):
        made = described(caller, given)
        return made.changed(agent=msgspec.structs.replace(made.submission.agent, job=JobSpec()))

    with monkeypatch.context() as patch:
        patch.setattr(submissions, "task_submission", as_job)
        answer = scheduler.submit_task_with_preemption(task_id, "pool", Counter, {"cpu": cpus})
    assert answer["success"], answer


def test_what_the_drivers_of_a_job_hold_is_within_its_claim(
    scheduler, namespace, monkeypatch, tmp_path
):
    def node():
        (found,) = scheduler.cluster_snapshot()["nodes"]
        return found

    scheduler.create_pool("pool", resources={"cpu": 8.0})
    submit_job(scheduler, monkeypatch, "train", 4.0)
    assert node()["free"]["cpu"] == 4.0
    (runner,) = [name for name in actors_in(namespace) if "#" in name]

    @ray.remote(num_cpus=1)
    class Foreign:
        def ping(self):
            return True

    foreign = Foreign.remote()
    ray.get(foreign.ping.remote())
    until(lambda: node()["external_usage"].get("cpu") == 1.0, "an unused claim hides foreign work")
    owner = {"metadata": {"schedulemesh_actor": f"{namespace}/{runner}"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(owner))
    with start_driver(DRIVER, tmp_path) as driver:
        assert driver.stdout.readline() == "holds 3\n"
        used = ray.cluster_resources()["CPU"] - 4.0
        until(lambda: ray.available_resources()["CPU"] == used, "Ray does not say so yet")
        until(lambda: node()["external_usage"].get("cpu") == 1.0, lambda: str(node()))
        assert node()["free"]["cpu"] == 3.0
        (job,) = scheduler.external_usage()["jobs"]
        assert job["job_id"] == ray.get_runtime_context().get_job_id()
        driver.communicate("\n", timeout=60)
    ray.kill(foreign)
    until(lambda: not node()["external_usage"], "external usage of work that has ended")
    assert node()["free"]["cpu"] == 4.0
