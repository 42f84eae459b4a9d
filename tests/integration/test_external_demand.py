"""Evictions beside actors, groups and plain tasks of others that wait in Ray for the same room."""

from __future__ import annotations

import time

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.core.backend import ray_tasks
from tests.integration.agents import Counter
from tests.integration.polling import assert_nothing_held, groups_in, until


@ray.remote(num_cpus=0)
class Foreign:
    """An actor that is none of ours."""

    def ping(self):
        return True


@pytest.fixture
def foreign():
    """Makes actors of others, which may wait; all end with the test."""
    made = []

    def make(**options):
        made.append(Foreign.options(**options).remote())
        return made[-1]

    yield make
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def pool(scheduler, namespace):
    """A pool whose only task holds both GPUs, in a placement group of its own."""
    until(lambda: ray.available_resources().get("GPU") == 2.0, "GPUs of a test before are taken")
    scheduler.create_pool("pool", resources={"cpu": 8.0, "gpu": 2.0})
    until(lambda: low_in_a_room(scheduler, namespace), "Ray does not place its room")
    return scheduler


def low_in_a_room(scheduler, namespace):
    """Start the task; whether it has a room, so that what it holds can be handed over. Where Ray takes longer
    than 0.5 s to place one it runs without, and is cancelled again.
    """
    started = submit(scheduler, "low")
    groups = groups_in(namespace).items()
    if any("room:" in name and group["state"] == "CREATED" for name, group in groups):
        return True
    if started["success"]:
        assert scheduler.cancel_task("low")["success"]
    return False


def submit(scheduler, task_id, priority=1.0, gpu=2.0, **more):
    return scheduler.submit_task_with_preemption(
        task_id, "pool", Counter, resources={"cpu": 1.0, "gpu": gpu}, priority=priority, **more
    )


def running(scheduler):
    return {t["task_id"] for t in scheduler.list_tasks()["tasks"] if t["phase"] == "running"}


def refused_for_demand(scheduler):
    """The answer to a task of another shape, once the scheduler has seen what waits."""
    answers = []

    def refused():
        answers.append(submit(scheduler, "high", 9.0, gpu=1.0, dry_run=True))
        return answers[-1].get("reason") == "external_demand"

    until(refused, lambda: f"it is not refused: {answers[-1]}")
    return answers[-1]


@pytest.mark.parametrize("round_", range(3))
def test_room_of_the_same_shape_is_handed_over_beside_an_actor_that_waits(pool, foreign, round_):
    foreign(num_gpus=2, namespace="others")
    refused_for_demand(pool)
    answer = submit(pool, "high", 9.0)
    assert answer["success"], answer
    assert [victim["task_id"] for victim in answer["preempted"]] == ["low"]
    assert running(pool) == {"high"}


def test_nobody_is_evicted_while_an_actor_waits_that_would_get_the_room(pool, foreign):
    waits = foreign(num_gpus=2, name="waiting", namespace="others")
    refused = refused_for_demand(pool)
    job_id = ray.get_runtime_context().get_job_id()
    assert f"Ray job {job_id} (namespace 'others') waits in Ray for gpu 2" in refused["error"]
    assert submit(pool, "high", 9.0, gpu=1.0, queue=True)["state"] == "queued"
    assert pool.explain("high")["reason"] == "external_demand"
    assert running(pool) == {"low"}
    ray.kill(waits)
    until(lambda: "high" in running(pool), "it does not start although nothing waits any more")


def test_a_placement_group_that_waits_counts_too(pool):
    group = placement_group([{"GPU": 1}, {"GPU": 1}], name="of-others")
    try:
        assert "waits in Ray for gpu 1" in refused_for_demand(pool)["error"]
    finally:
        remove_placement_group(group)


def test_an_actor_that_has_its_room_is_no_demand(pool, foreign):
    actor = foreign(num_cpus=1)
    assert ray.get(actor.ping.remote())
    assert submit(pool, "high", 9.0, gpu=1.0)["success"]


@ray.remote(num_cpus=0, num_gpus=2, max_retries=0)
def until_told(folder):
    """Holds both GPUs from when it starts, until there is a file."""
    (folder / "begun").touch()
    while not (folder / "end").exists():
        time.sleep(0.02)  # between two looks at the file


@pytest.fixture
def plain_task(tmp_path):
    """Starts a plain task, and says whether it has its room; all end with the test."""
    tasks = []

    def start(**options):
        tasks.append(until_told.options(**options).remote(tmp_path))

    start.has_begun = (tmp_path / "begun").exists
    start.end = (tmp_path / "end").touch
    yield start
    start.end()
    ray.get(tasks)


def test_nobody_is_evicted_while_a_plain_task_waits_that_would_get_the_room(pool, plain_task):
    plain_task()
    refused_for_demand(pool)
    # Whose the task is becomes known a second after it has been submitted.
    own = ray.get_runtime_context()
    named = f"Ray job {own.get_job_id()} (namespace {own.namespace!r}) waits in Ray for gpu 2"
    until(lambda: named in refused_for_demand(pool)["error"], "the task's job is not named")
    (waits,) = (job for job in pool.external_usage()["jobs"] if job["waiting"])
    assert (waits["job_id"], waits["waiting"]) == (own.get_job_id(), {"gpu": 2.0})
    assert submit(pool, "high", 9.0, gpu=1.0, queue=True)["state"] == "queued"
    assert pool.explain("high")["reason"] == "external_demand"
    assert not plain_task.has_begun()
    pool.cancel_task("low")
    until(plain_task.has_begun, "the plain task does not get the room that is free")
    plain_task.end()
    until(lambda: "high" in running(pool), "it does not start although nothing waits any more")


def test_room_of_the_same_shape_is_handed_over_beside_a_plain_task_that_waits(pool, plain_task):
    plain_task()
    refused_for_demand(pool)
    assert submit(pool, "high", 9.0)["success"]
    assert (running(pool), plain_task.has_begun()) == ({"high"}, False)
    pool.cancel_task("high")
    until(plain_task.has_begun, "the plain task does not get the room that is free")


def test_room_that_a_plain_task_took_is_lost_within_seconds(pool, plain_task):
    """Ray does not say that a task or an actor waits for one node alone."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # No task of another test asks for the same, so it is this one that Ray says is waiting.
    plain_task(scheduling_strategy=here, resources={"accelerator": 1})
    until(
        lambda: any("accelerator" in dict(shape) for _, shape in ray_tasks._owners()),
        "the plain task does not wait",
    )
    began = time.monotonic()
    answer = submit(pool, "high", 9.0, gpu=1.0)
    took_s = time.monotonic() - began
    until(plain_task.has_begun, lambda: f"the plain task did not get the room: {answer}")
    assert answer["reason"] == "cluster_out_of_resources", answer
    assert "other Ray work holds 2" in answer["error"]
    start_timeout_s = pool.get_preemption_policy()["policy"]["start_timeout"]
    assert took_s < start_timeout_s / 2, "it waited for the plain task, or for start_timeout"
    assert answer["requeued"] == ["low"]
    plain_task.end()
    until(lambda: running(pool) == {"low"}, "the victim does not return")
    pool.cancel_task("low")
    assert_nothing_held(pool)


def test_room_that_was_lost_is_explained_and_the_victim_waits_at_its_place(pool, foreign):
    """Of two that wait one gets the room, whatever Ray does with the scheduler's actor."""
    for name in ("one", "other"):
        foreign(num_gpus=2, name=name, namespace="others")
    refused_for_demand(pool)  # so they are in Ray's queue
    pool.update_preemption_policy(evict_despite_external_demand=True)
    assert submit(pool, "high", 9.0, gpu=1.0, dry_run=True)["success"]
    answer = submit(pool, "high", 9.0, gpu=1.0)
    assert answer["reason"] == "cluster_out_of_resources", answer
    assert "in use by Ray job" in answer["error"]
    assert "'others'" in answer["error"]
    victims = (answer["restarted"], answer["requeued"], answer["not_restarted"])
    assert victims == ([], ["low"], [])
    assert [task["task_id"] for task in pool.list_queue()["tasks"]] == ["low"]
    pool.cancel_task("low")
    assert_nothing_held(pool)
