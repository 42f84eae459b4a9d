"""Ordinary Ray work beside the scheduler: seen within a second, and named as what it is."""

from __future__ import annotations

import os
import time

import pytest
import ray

from tests.integration.agents import Counter
from tests.integration.polling import assert_nothing_held, until


@ray.remote
class Ordinary:
    """An actor that is none of ours."""

    def ping(self):
        return True


@pytest.fixture
def ordinary():
    """Makes an ordinary actor with so many CPUs, which runs when this returns; all end with the test."""
    made = []

    def make(cpus):
        made.append(Ordinary.options(num_cpus=cpus).remote())
        assert ray.get(made[-1].ping.remote())
        return made[-1]

    yield make
    for actor in made:
        free = ray.available_resources().get("CPU", 0.0)
        ray.kill(actor)
        until(
            lambda before=free: ray.available_resources().get("CPU", 0.0) > before,
            "its CPUs stay taken",
        )


def submit(scheduler, task_id, cpus, priority=1.0):
    return scheduler.submit_task_with_preemption(
        task_id, "pool", Counter, resources={"cpu": cpus}, priority=priority
    )


def test_capacity_that_other_workloads_just_took_is_refused_within_seconds(scheduler, ordinary):
    scheduler.create_pool("pool", resources={"cpu": 8.0})
    assert submit(scheduler, "first", 1.0)["success"]
    scheduler.complete_task("first", end_agent=True)
    ordinary(7)
    begun = time.monotonic()
    answer = submit(scheduler, "late", 2.0)
    took = time.monotonic() - begun
    assert not answer["success"], answer
    # Where the state has seen the other work before the submission came, nothing is started at all.
    if answer["reason"] != "preemption_failed":
        assert answer["reason"] == "cluster_out_of_resources"
        told = "of cpu 8 there, other Ray work holds 7, ScheduleMesh 0, and it needs 2"
        assert told in answer["error"]
    assert took < scheduler.get_preemption_policy()["policy"]["start_timeout"] / 2, (
        "it waited for room"
    )
    assert_nothing_held(scheduler)
    (node,) = scheduler.cluster_snapshot()["nodes"]
    assert node["free"]["cpu"] == 1.0, "the node state has it from now on"
    assert submit(scheduler, "small", 1.0)["success"]


def test_victims_are_restarted_when_ray_has_no_capacity_for_the_start(scheduler, ordinary):
    """It is evicted on the promise of free room that somebody else took meanwhile."""
    scheduler.create_pool("pool", resources={"cpu": 8.0})
    assert submit(scheduler, "low", 2.0)["success"]
    hog = ordinary(5)
    answer = submit(scheduler, "high", 8.0, priority=9.0)
    assert not answer["success"], answer
    if answer["reason"] == "cluster_out_of_resources":
        assert answer["restarted"] == ["low"], answer
    running = {task["task_id"] for task in scheduler.list_tasks()["tasks"]}
    assert running == {"low"}
    assert hog is not None


def test_the_jobs_that_use_a_node_are_named_and_our_own_agents_are_not(scheduler, ordinary):
    scheduler.create_pool("pool", resources={"cpu": 8.0})
    for task_id, options in (("marked", {}), ("named", {"name": "mine"})):
        done = scheduler.submit_task_with_preemption(
            task_id, "pool", Counter, resources={"cpu": 1.0}, ray_options=options
        )
        assert done["success"], done
    assert scheduler.external_usage()["jobs"] == []
    ordinary(3)
    context = ray.get_runtime_context()
    (job,) = scheduler.external_usage()["jobs"]
    assert (job["job_id"], job["driver_pid"]) == (context.get_job_id(), os.getpid())
    assert job["nodes"] == {context.get_node_id(): {"cpu": 3.0}}
    (node,) = scheduler.cluster_snapshot()["nodes"]
    assert [used["resources"] for used in node["external_jobs"]] == [{"cpu": 3.0}]
    until(
        lambda: scheduler.cluster_snapshot()["nodes"][0]["free"]["cpu"] == 3.0,
        "the other work is not in the state",
    )
    waits = scheduler.submit_task_with_preemption(
        "waits", "pool", Counter, resources={"cpu": 6.0}, queue=True
    )
    assert waits["state"] == "queued"
    until(lambda: scheduler.explain("waits")["external_usage"], "the other work is not seen")
    (usage,) = scheduler.explain("waits")["external_usage"]
    assert [used["job_id"] for used in usage["jobs"]] == [context.get_job_id()]
    # It would start as soon as the other work ends.
    scheduler.cancel_task("waits")
