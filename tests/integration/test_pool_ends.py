"""Pools that get other names and end, on real Ray."""

from __future__ import annotations

import os
import signal

import ray

from tests.integration.agents import Counter
from tests.integration.polling import until


def names_of(scheduler):
    return [pool["name"] for pool in scheduler.list_pools()["pools"]]


def test_a_pool_is_renamed_while_a_task_runs_and_ends_though_the_supervisor_dies(scheduler):
    scheduler.create_pool("research", resources={"cpu": 1})
    scheduler.create_pool("other", resources={"cpu": 1})
    answer = scheduler.submit_task_with_preemption("t", "research", Counter, {"cpu": 1})
    handle = answer["agent"]["handle"]
    assert ray.get(handle.add.remote(3)) == 3
    scheduler.submit_task_with_preemption("w", "research", Counter, {"cpu": 1}, queue=True)

    assert scheduler.rename_pool("research", "science")["success"]
    assert names_of(scheduler) == ["science", "other"]
    assert ray.get(handle.add.remote(1)) == 4
    assert {task["pool_name"] for task in scheduler.list_tasks()["tasks"]} == {"science"}
    refused = scheduler.submit_task_with_preemption("x", "research", Counter, {"cpu": 1})
    assert "which was renamed to 'science'" in refused["error"]
    attempts = scheduler.history(pool="research")["attempts"]
    assert {attempt["task_id"] for attempt in attempts} == {"t", "w"}

    refused = scheduler.delete_pool("science")
    assert (refused["reason"], "('t') runs in it" in refused["error"]) == ("pool_in_use", True)
    ending = scheduler.delete_pool("science", drain=True)
    assert ending["detail"] == "ending"
    os.kill(scheduler.about()["pid"], signal.SIGKILL)
    until(lambda: names_of(scheduler) == ["other"], "the pool does not end")
    assert scheduler.explain("w")["reason"] == "pool_ending"
    saved = scheduler.get_saved_state("t")["saved_state"]
    assert saved["state"] == {"count": 4}
    assert scheduler.create_pool("science", resources={"cpu": 1})["detail"] == "created"
    restored = scheduler.restore_task(saved)
    assert ray.get(restored["agent"]["handle"].add.remote(1)) == 5
    assert scheduler.set_priority("t", "critical")["success"]
    (task,) = scheduler.list_tasks()["tasks"]
    assert (task["priority"], task["priority_class"]) == (10.0, "critical")
