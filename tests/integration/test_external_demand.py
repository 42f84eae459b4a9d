"""Evictions beside actors and groups of others that wait in Ray for the same room."""

from __future__ import annotations

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from tests.integration.agents import Counter
from tests.integration.polling import assert_nothing_held, until


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
def pool(scheduler):
    """A pool whose only task holds both GPUs."""
    until(lambda: ray.available_resources().get("GPU") == 2.0, "GPUs of a test before are taken")
    scheduler.create_pool("pool", resources={"cpu": 8.0, "gpu": 2.0})
    assert submit(scheduler, "low")["success"]
    return scheduler


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


def test_room_that_was_lost_is_explained_and_the_victim_waits_at_its_place(pool, foreign):
    """Of two that wait one gets the room, whatever Ray does with the scheduler's actor."""
    pool.update_preemption_policy(evict_despite_external_demand=True)
    for name in ("one", "other"):
        foreign(num_gpus=2, name=name, namespace="others")
    assert submit(pool, "high", 9.0, gpu=1.0, dry_run=True)["success"]
    answer = submit(pool, "high", 9.0, gpu=1.0)
    assert answer["reason"] == "cluster_out_of_resources", answer
    assert "in use by Ray job" in answer["error"]
    assert "'others'" in answer["error"]
    assert (answer["restarted"], answer["not_restarted"]) == ([], ["low"])
    assert [task["task_id"] for task in pool.list_queue()["tasks"]] == ["low"]
    pool.cancel_task("low")
    assert_nothing_held(pool)
