"""Ray jobs that somebody else has started become tasks: accounted, evicted, cancelled, and ended whole."""

from __future__ import annotations

import sys

import pytest
import ray
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup, remove_placement_group

from schedulemesh.errors import InvalidRequestError
from tests.integration.agents import Plain
from tests.integration.drivers import start_driver
from tests.integration.polling import actors_in, groups_in, until
from tests.integration.ray_job_submit import submitted

#: A driver that holds 3 CPUs: with an actor, a detached one, and a detached placement group. It ends when it
#: is told to.
DRIVER = """
from ray.util.placement_group import placement_group

@ray.remote(num_cpus=1)
class Worker:
    def ping(self):
        return True

namespace = sys.stdin.readline().strip()
worker = Worker.remote()
kept = Worker.options(name="kept", namespace=namespace, lifetime="detached").remote()
group = placement_group([{"CPU": 1}], name=f"@{namespace}: kept", lifetime="detached")
ray.get([worker.ping.remote(), kept.ping.remote(), group.ready()])
print(ray.get_runtime_context().get_job_id(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def outside(namespace):
    """A Ray namespace in which the driver leaves things behind; they end with the test."""
    name = f"{namespace}-outside"
    yield name
    for actor in actors_in(name):
        ray.kill(ray.get_actor(actor, namespace=name))
    for group in groups_in(name).values():
        group_id = PlacementGroupID(bytes.fromhex(group["placement_group_id"]))
        remove_placement_group(PlacementGroup(group_id))


@pytest.fixture
def foreign(outside, tmp_path):
    """A foreign driver that runs: its process, and the id of its Ray job."""
    driver = start_driver(DRIVER, tmp_path)
    driver.stdin.write(f"{outside}\n")
    driver.stdin.flush()
    yield driver, driver.stdout.readline().strip()
    if driver.poll() is None:
        driver.kill()
    driver.communicate(timeout=60)


@pytest.fixture
def pool(scheduler):
    """A scheduler with a pool of 8 CPUs, all that there are."""
    scheduler.ensure_pool("p", resources={"cpu": 8})
    # A runner that does not end the driver in time is ended itself, and the driver runs on.
    scheduler.update_preemption_policy(cancel_timeout=60.0)
    return scheduler


@pytest.fixture
def adopted(pool, foreign):
    """The id of the foreign job as a task, once its claim is where its work is."""
    answer = pool.adopt_job(foreign[1], "p", priority=1.0)
    assert answer["success"], answer
    node_id = ray.get_runtime_context().get_node_id()
    until(
        lambda: pool.jobs()["jobs"][0].get("claimed") == {node_id: {"cpu": 3.0}},
        lambda: f"{pool.jobs()['jobs']}",
    )
    return answer["task_id"]


def node_of(pool):
    (node,) = pool.cluster_snapshot()["nodes"]
    return node


def test_an_adopted_job_is_accounted_until_it_ends_by_itself(pool, foreign, adopted, outside):
    driver, ray_job_id = foreign
    (job,) = pool.jobs()["jobs"]
    assert (job["ray_job_id"], job["state"], job["resources"]) == (
        ray_job_id,
        "running",
        {"cpu": 3.0},
    )
    assert pool.external_usage()["jobs"] == []
    until(lambda: not node_of(pool)["external_usage"], lambda: str(node_of(pool)))
    assert node_of(pool)["free"]["cpu"] == 5.0
    assert pool.list_pools()["pools"][0]["used"] == {"cpu": 3.0}

    driver.communicate("\n", timeout=60)

    assert pool.wait([adopted], timeout=60)["pending"] == []
    assert pool.jobs()["jobs"][0]["state"] == "completed"
    assert actors_in(outside) == ["kept"], "what it has left behind stays"
    until(lambda: node_of(pool)["free"]["cpu"] == 6.0, lambda: str(node_of(pool)))
    assert {work["job_id"] for work in pool.external_usage()["jobs"]} == {ray_job_id}


def test_cancelling_an_adopted_job_ends_its_driver_and_all_that_it_has_started(
    pool, foreign, adopted, outside
):
    assert pool.cancel_task(adopted)["success"]
    assert foreign[0].poll() is not None
    assert actors_in(outside) == []
    assert groups_in(outside) == {}
    assert node_of(pool)["free"]["cpu"] == 8.0


def test_a_more_urgent_task_evicts_an_adopted_job_and_gets_its_room(
    pool, foreign, adopted, outside
):
    answer = pool.submit_task_with_preemption("high", "p", Plain, {"cpu": 6}, 9.0)
    assert answer["success"], answer
    assert [victim["task_id"] for victim in answer["preempted"]] == [adopted]
    assert foreign[0].poll() is not None
    assert actors_in(outside) == []
    (job,) = pool.jobs()["jobs"]
    assert (job["task_id"], job["reason"]) == (adopted, "preempted")


def test_a_job_that_is_no_foreign_one_is_not_adopted(pool, foreign, adopted):
    for ray_job_id in ("ff000000", ray.get_runtime_context().get_job_id()):
        with pytest.raises(InvalidRequestError, match="external_usage"):
            pool.adopt_job(ray_job_id, "p")
    for task_id in (None, "another-id"):
        answer = pool.adopt_job(foreign[1], "p", task_id=task_id)
        assert (answer["success"], answer["reason"]) == (False, "duplicate_task"), answer
    assert "adopted already" in answer["error"]
    assert adopted in answer["error"]


def test_gpus_of_a_submitted_command_belong_to_its_submission_which_can_be_adopted(pool):
    pool.ensure_pool("gpus", resources={"gpu": 2})
    # It does not use Ray itself.
    command = {"entrypoint": "sleep 600", "entrypoint_num_gpus": 2}  # there to be ended
    with submitted(command) as submission_id:

        def found():
            rows = pool.external_usage()["jobs"]
            started = (row for row in rows if row["job_id"] == submission_id and row["driver_pid"])
            return [row for row in started if row["resources"]]

        (row,) = until(found, lambda: str(pool.external_usage()), 60)
        assert (row["entrypoint"], row["resources"]) == ("sleep 600", {"gpu": 2.0})
        answer = pool.adopt_job(submission_id, "gpus")
        assert answer["success"], answer
        until(lambda: not pool.external_usage()["jobs"], lambda: str(pool.external_usage()), 60)
        (job,) = pool.jobs()["jobs"]
        assert (job["resources"], job["used"]) == ({"gpu": 2.0}, {"gpu": 2.0})

        pool.cancel_task(answer["task_id"])

        until(lambda: ray.available_resources().get("GPU") == 2, "the GPUs were not given back", 60)


#: A driver that connects to Ray when its file is there, and leaves an actor behind.
CONNECTS_LATER = """
import pathlib, time
while not pathlib.Path({file!r}).exists():
    time.sleep(0.1)  # between two looks at what has no event
import ray
ray.init(address={address!r})

@ray.remote(num_cpus=1)
class Worker:
    def ping(self):
        return True

kept = Worker.options(name="kept", namespace={namespace!r}, lifetime="detached").remote()
ray.get(kept.ping.remote())
time.sleep(600)  # there to be ended
"""


def test_a_submission_that_is_adopted_before_its_driver_connects_is_ended_whole(
    pool, outside, tmp_path
):
    pool.ensure_pool("gpus", resources={"cpu": 1, "gpu": 2})
    file, script = tmp_path / "connects", tmp_path / "train.py"
    address = ray.get_runtime_context().gcs_address
    script.write_text(CONNECTS_LATER.format(file=str(file), address=address, namespace=outside))
    command = {"entrypoint": f"{sys.executable} {script}", "entrypoint_num_gpus": 2}
    with submitted(command) as submission_id:

        def runs():
            rows = pool.external_usage()["jobs"]
            return [row for row in rows if row["job_id"] == submission_id and row["driver_pid"]]

        until(runs, lambda: str(pool.external_usage()), 60)
        task_id = pool.adopt_job(submission_id, "gpus", resources={"cpu": 1, "gpu": 2})["task_id"]
        file.touch()
        until(
            lambda: pool.jobs()["jobs"][0].get("used") == {"cpu": 1.0, "gpu": 2.0},
            lambda: f"{pool.jobs()['jobs']}, {pool.external_usage()}",
            60,
        )
        assert pool.external_usage()["jobs"] == []

        assert pool.cancel_task(task_id)["success"]

        assert actors_in(outside) == []
        until(lambda: ray.available_resources().get("GPU") == 2, "the GPUs were not given back", 60)


def test_a_job_for_which_its_pool_has_no_quota_is_not_adopted(pool, foreign):
    pool.ensure_pool("small", resources={"cpu": 1})
    answer = pool.adopt_job(foreign[1], "small")
    assert (answer["success"], answer["reason"]) == (False, "exceeds_pool_capacity")
    assert foreign[0].poll() is None
