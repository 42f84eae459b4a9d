"""Ray Serve as a job: its replicas count for the job, and end with it."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.integration.polling import actors_in, quota, until, used_by

pytest.importorskip("fastapi", reason="fastapi, which ray.serve needs, is not installed")
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray Serve's own
]

#: Serves until it is ended. The port of HTTP would be the machine's.
SCRIPT = """
import os, time
import ray
from ray import serve
from schedulemesh import job

@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})
class Doubler:
    def __call__(self, x):
        return 2 * x

ray.init()
serve.start(proxy_location="Disabled")
serve.run(Doubler.bind(), name="doubler")
print("serving in process", os.getpid(), flush=True)
while not job.preempted():
    time.sleep(0.05)  # as a server does between two looks
serve.shutdown()
print("shut down", flush=True)
"""


@pytest.fixture
def serving(scheduler, tmp_path):
    """A scheduler with a protected pool, and a job there that serves."""
    from ray import serve

    scheduler.create_pool("serving", resources={"cpu": 2})
    scheduler.create_pool("batch", resources={"cpu": 2})
    scheduler.update_preemption_policy(protected_pools=["serving"])
    (tmp_path / "app.py").write_text(SCRIPT)
    answer = scheduler.submit_job(
        "serve",
        [sys.executable, "app.py"],
        "serving",
        {"cpu": 2},
        working_dir=tmp_path,
        priority=1.0,
        grace_s=30,
    )
    assert answer["success"], answer
    until(lambda: "serving in process" in log_of(scheduler), lambda: log_of(scheduler), 120)
    yield scheduler
    serve.context._set_global_client(None)  # that of a Serve which has ended


def log_of(scheduler):
    return "".join(scheduler.job_logs("serve"))


def may_be_evicted(scheduler):
    return scheduler.evaluate_preemption(incoming_task_priority=100.0, incoming_task_pool="batch")[
        "should_preempt"
    ]


def test_an_app_serves_other_jobs_counts_for_its_own_and_ends_with_it(serving):
    from ray import serve

    assert serve.get_app_handle("doubler").remote(21).result(timeout_s=30) == 42
    until(lambda: used_by(serving, "serve") == {"cpu": 2.0}, "the replicas do not count")
    assert not may_be_evicted(serving)
    serving.update_preemption_policy(protected_pools=[])
    assert may_be_evicted(serving)
    assert serving.cancel_task("serve")["success"]
    assert serving.wait(["serve"], timeout=60)["pending"] == []
    assert "shut down" in log_of(serving)
    assert actors_in("serve") == []
    assert quota(serving, "serving")["free"] == {"cpu": 2.0}


def test_nothing_of_it_is_left_where_its_driver_is_killed(serving):
    assert "SERVE_CONTROLLER_ACTOR" in actors_in("serve")
    os.kill(int(log_of(serving).split("serving in process ")[1].split()[0]), signal.SIGKILL)
    assert serving.wait(["serve"], timeout=60)["pending"] == []
    assert actors_in("serve") == []
    assert quota(serving, "serving")["free"] == {"cpu": 2.0}
