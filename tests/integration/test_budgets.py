"""A budget on real Ray that is spent: alerts fire, priorities are lowered, and others evict."""

from __future__ import annotations

import pytest
import ray

from tests.integration.agents import Counter
from tests.integration.polling import until

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
