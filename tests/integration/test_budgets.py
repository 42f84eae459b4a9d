"""Budgets on real Ray: they are charged for what really ran, told at 80 and 100 %, and then obeyed."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from tests.integration.agents import Counter
from tests.integration.polling import process_exists, until

#: GPU-seconds of a budget, which one GPU uses up in a moment.
BUDGET_S = 4.0
HOUR_S = 3600.0
GPU = {"cpu": 1.0, "gpu": 1.0}


@pytest.fixture
def scheduler(make_scheduler):
    """A scheduler that looks for alerts all the time."""
    return make_scheduler(alerts={"interval_s": 0.1})


def budget(then, gpu_s=BUDGET_S):
    return {"gpu_hours": gpu_s / HOUR_S, "then": then}


def submit(scheduler, task_id, owner=None, resources=None, **how):
    """Submit a task that may wait; returns what it does."""
    answer = scheduler.submit_task_with_preemption(
        task_id, "research", Counter, resources or GPU, queue=True, owner=owner, **how
    )
    assert answer["success"], answer
    return answer["state"]


def phase(scheduler, task_id):
    (row,) = [task for task in scheduler.list_tasks()["tasks"] if task["task_id"] == task_id]
    return row["phase"]


def priority(scheduler, task_id):
    (row,) = [task for task in scheduler.list_tasks()["tasks"] if task["task_id"] == task_id]
    return row["priority"]


def row_of(scheduler, owner=None):
    (row,) = [row for row in scheduler.budgets()["budgets"] if row["owner"] == owner]
    return row


def alerts(scheduler, state):
    """The rules whose alerts are in this state."""
    return {row["rule"] for row in scheduler.alerts()["alerts"] if row["state"] == state}


def levels(scheduler):
    """What was told of budgets, in order."""
    kinds = ["budget_reached", "budget_renewed"]
    events = scheduler.events(0, kinds=kinds)["events"]
    return [event["detail"].get("percent") or 0 for event in events]


def restart(scheduler):
    """Kill the supervisor's process; Ray starts it again."""
    pid = scheduler.about()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process_exists(pid), "the supervisor still runs")


def gpu_s(scheduler):
    """The GPU-seconds that the pool's budget was charged for."""
    return row_of(scheduler)["used"] * HOUR_S


def define(scheduler, gpu_s):
    """Give the pool a budget of so many GPU-seconds."""
    size = {"cpu": 4.0, "gpu": 2.0}
    assert scheduler.ensure_pool("research", resources=size, budget=budget("hold", gpu_s))[
        "success"
    ]


def test_a_budget_is_charged_for_what_ran_and_holds_what_waits_once_it_is_spent(scheduler):
    define(scheduler, HOUR_S)
    submit(scheduler, "first")
    until(lambda: gpu_s(scheduler) > 2.0, lambda: f"not charged: {row_of(scheduler)}")
    assert scheduler.complete_task("first", end_agent=True)["success"]
    until(
        lambda: scheduler.history("first")["attempts"][0]["released_at"], "its end is not recorded"
    )
    (attempt,) = scheduler.history("first")["attempts"]
    assert gpu_s(scheduler) == pytest.approx(attempt["gpu_s"], abs=0.01)

    define(scheduler, attempt["gpu_s"] / 0.9)
    until(lambda: levels(scheduler) == [80], lambda: f"told: {levels(scheduler)}")
    until(lambda: "pool_budget_nearly_spent" in alerts(scheduler, "firing"), "no alert at 80 %")
    restart(scheduler)
    assert gpu_s(scheduler) == pytest.approx(attempt["gpu_s"], abs=0.01)
    submit(scheduler, "second")
    until(lambda: levels(scheduler) == [80, 100], lambda: f"told: {levels(scheduler)}")
    until(lambda: "pool_budget_spent" in alerts(scheduler, "firing"), "no alert at 100 %")
    assert phase(scheduler, "second") == "running", "what runs goes on"
    assert submit(scheduler, "waits") == "queued"
    assert scheduler.explain("waits")["reason"] == "budget_spent"
    refused = scheduler.submit_task_with_preemption("now", "research", Counter, GPU)
    assert refused["reason"] == "budget_spent"
    submit(scheduler, "without", resources={"cpu": 1.0})
    until(lambda: phase(scheduler, "without") == "running", "a task without GPUs is held")
    assert phase(scheduler, "waits") == "queued"

    define(scheduler, 100 * HOUR_S)
    until(lambda: phase(scheduler, "waits") == "running", "the raised budget starts nothing")
    resolved = {"pool_budget_nearly_spent", "pool_budget_spent"}
    until(lambda: resolved <= alerts(scheduler, "resolved"), "the alerts are not resolved")
    until(lambda: levels(scheduler) == [80, 100, 0], lambda: f"told: {levels(scheduler)}")


def test_an_owner_whose_budget_is_spent_gives_way_to_others_and_returns(scheduler):
    budgets = {"ada": budget("lower_priority")}
    size = {"cpu": 4.0, "gpu": 1.0}
    scheduler.create_pool("research", resources=size, owner_budgets=budgets)
    how = {"priority": 5.0, "on_preempted": "requeue"}
    submit(scheduler, "ada-1", "ada", **how)
    until(lambda: phase(scheduler, "ada-1") == "running", "it does not start")
    (agent,) = scheduler.list_agents()["agents"]
    ray.get(agent["handle"].add.remote(7))
    assert submit(scheduler, "ben-1", "ben", priority=3.0) == "queued"
    until(
        lambda: phase(scheduler, "ben-1") == "running",
        lambda: f"nobody gives way: {scheduler.explain('ben-1')}, {row_of(scheduler, 'ada')}",
    )
    assert {"owner_budget_nearly_spent", "owner_budget_spent"} <= alerts(scheduler, "firing")
    assert (phase(scheduler, "ada-1"), priority(scheduler, "ada-1")) == ("queued", 0.1)
    (evicted,) = scheduler.list_preemptions()["preemptions"]
    assert (evicted["task_id"], evicted["state_saved"]) == ("ada-1", True)

    assert scheduler.complete_task("ben-1", end_agent=True)["success"]
    until(lambda: phase(scheduler, "ada-1") == "running", "it does not return")
    (agent,) = scheduler.list_agents()["agents"]
    assert ray.get(agent["handle"].add.remote(0)) == 7
    assert priority(scheduler, "ada-1") == 0.1
    raised = {"ada": budget("lower_priority", 100 * HOUR_S)}
    assert scheduler.resize_pool("research", owner_budgets=raised)["success"]
    until(lambda: priority(scheduler, "ada-1") == 5.0, "its priority stays low")
