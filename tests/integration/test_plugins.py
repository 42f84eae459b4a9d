"""Strategies in a real supervisor: asked, skipped, disabled, and ended by the watchdog."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins import SchedulingStrategyPlugin


class Boost(SchedulingStrategyPlugin):
    """Adds a bonus for a label, and prefers pools by a label; its bonus travels with the instance."""

    def __init__(self, bonus):
        self.bonus = bonus

    def priority(self, task):
        return task.priority + self.bonus if task.labels.get("team") == "vip" else None

    def score(self, task, resources):
        return 1.0 if resources.labels.get("tier") == "gold" else 0.0


class Broken(SchedulingStrategyPlugin):
    def priority(self, task):
        raise RuntimeError("no idea")

    def score(self, task, resources):
        return float("nan")


class Slow(SchedulingStrategyPlugin):
    def priority(self, task):
        time.sleep(0.03)  # a slow plugin
        return 7.0


class Hanging(SchedulingStrategyPlugin):
    def priority(self, task):
        while task.id == "poison":
            pass


def submit(scheduler, task_id, **more):
    return scheduler.submit_task_with_preemption(
        task_id=task_id, actor_class=AgentActor, resources={"cpu": 0.1}, **more
    )


def status(scheduler):
    (found,) = scheduler.strategies()["strategies"]
    return found


def priority_of(scheduler, task_id):
    return {t["task_id"]: t["priority"] for t in scheduler.list_tasks()["tasks"]}[task_id]


def test_an_instance_decides_priorities_and_pools(make_scheduler):
    scheduler = make_scheduler(strategies=[Boost(3.5)])
    scheduler.create_pool("big", {"kind": "x"}, {"cpu": 4.0})
    scheduler.create_pool("small", {"kind": "x", "tier": "gold"}, {"cpu": 1.0})

    answer = submit(scheduler, "t", labels={"team": "vip"}, pool_selector={"kind": "x"})

    assert answer["success"], answer
    assert answer["agent"]["labels"]["pool"] == "small"
    assert priority_of(scheduler, "t") == 8.5
    found = status(scheduler)
    assert (found["name"], found["hooks"]) == ("Boost", ["priority", "score"])
    assert found["calls"] > 0 == found["failures"]


def test_a_plugin_that_raises_is_skipped_and_counted(make_scheduler):
    scheduler = make_scheduler(strategies=[Broken()])
    scheduler.create_pool("p", {}, {"cpu": 4.0})
    assert submit(scheduler, "t", pool_name="p", priority=6.0)["success"]
    assert priority_of(scheduler, "t") == 6.0
    found = status(scheduler)
    assert found["failures"] == found["calls"] >= 2
    assert found["disabled"] == ""


def test_a_slow_plugin_is_disabled_after_three_calls(make_scheduler):
    scheduler = make_scheduler(strategies=[Slow()])
    scheduler.create_pool("p", {}, {"cpu": 4.0})
    for i in range(4):
        assert submit(scheduler, f"t{i}", pool_name="p", priority=2.0, dry_run=True)["success"]
    assert status(scheduler)["slow_calls"] == 3
    assert "longer than 10 ms" in status(scheduler)["disabled"]
    assert submit(scheduler, "t", pool_name="p", priority=2.0)["success"]
    assert priority_of(scheduler, "t") == 2.0


def test_a_hanging_plugin_is_disabled_and_the_call_still_answered(make_scheduler):
    scheduler = make_scheduler(strategies=[Hanging()])
    scheduler.create_pool("p", {}, {"cpu": 4.0})
    assert submit(scheduler, "before", pool_name="p")["success"]

    answer = submit(scheduler, "poison", pool_name="p")

    assert answer["success"], answer
    assert "priority did not return within 5 s" in status(scheduler)["disabled"]
    assert {t["task_id"] for t in scheduler.list_tasks()["tasks"]} == {"before", "poison"}
    assert submit(scheduler, "after", pool_name="p")["success"]


class ProcessExiting(SchedulingStrategyPlugin):
    """Ends the process, as a crash in C code would."""

    def priority(self, task):
        if task.id == "poison":
            os._exit(1)

    def preemption_policy(self, high, low):
        raise asyncio.CancelledError


def test_a_plugin_that_exits_the_process_is_disabled_and_the_call_still_answered(make_scheduler):
    scheduler = make_scheduler(strategies=[ProcessExiting()])
    scheduler.create_pool("p", {}, {"cpu": 0.2})
    assert submit(scheduler, "before", pool_name="p", priority=1.0)["success"]
    assert submit(scheduler, "beside", pool_name="p", priority=2.0)["success"]

    answer = submit(scheduler, "poison", pool_name="p", priority=9.0)

    assert answer["success"], answer
    assert "ended while it was asked priority" in status(scheduler)["disabled"]
    assert {t["task_id"] for t in scheduler.list_tasks()["tasks"]} == {"beside", "poison"}


def test_a_plugin_cancelled_in_a_hook_leaves_no_caller_unanswered(make_scheduler):
    scheduler = make_scheduler(strategies=[ProcessExiting()])
    scheduler.create_pool("p", {}, {"cpu": 0.1})
    assert submit(scheduler, "low", pool_name="p", priority=1.0)["success"]
    answer = submit(scheduler, "high", pool_name="p", priority=9.0)
    assert [victim["task_id"] for victim in answer["preempted"]] == ["low"]
    assert status(scheduler)["failures"] >= 1
    assert status(scheduler)["disabled"] == ""


def test_an_import_path_is_loaded_by_the_supervisor(make_scheduler):
    scheduler = make_scheduler(strategies=["examples.plugin_demo:LongJobsLast", "spread"])
    assert status(scheduler)["hooks"] == ["priority"]


def test_an_invalid_plugin_is_refused_before_anything_starts(make_scheduler):
    for wrong in (["nobody"], ["json:JSONDecoder"], [object()], "spread", ["spread", "bin_pack"]):
        with pytest.raises(InvalidRequestError):
            make_scheduler(strategies=wrong)
    with pytest.raises(InvalidRequestError, match="pool_strategy is 'x'"):
        make_scheduler(pool_strategy="x")
