"""Every call that the document on automated submission prints, and its four scenarios."""

from __future__ import annotations

import re

import pytest
import ray

from tests.integration.polling import assert_nothing_held, quota


class MyTaskActor:
    def __init__(self, name, labels, duration):
        self.name, self.labels, self.duration = name, labels, duration

    def told(self):
        return self.name, self.labels, self.duration


@pytest.fixture
def simple(make_simple):
    scheduler = make_simple("my-scheduler")
    scheduler.ensure_pool(
        name="my-pool",
        labels={"tier": "standard"},
        resources={"cpu": 2, "memory": 4.0},
    )
    scheduler.configure_preemption(
        preemption_aggressiveness="medium",
        label_preemption_rules={"tier": {"premium": ["standard"]}},
    )
    return scheduler


def submit(simple, task_id="my-task-001", **changes):
    given = {
        "pool": "my-pool",
        "resources": {"cpu": 1, "memory": 2.0},
        "priority": 8.0,
        "labels": {"tier": "premium", "user": "alice"},
        "actor_class": MyTaskActor,
        "actor_kwargs": {"duration": 60.0},
    }
    return simple.submit(task_id=task_id, **{**given, **changes})


def test_scenarios_1_to_3(simple):
    # 1: there is room
    result = submit(simple)
    assert result["success"] is True
    agent = result["agent"]
    assert re.fullmatch(r"my-pool-agent-[0-9a-f]{6}", agent["name"])
    assert agent["resources"] == {"cpu": 1, "memory": 2.0}
    assert agent["labels"] == {"pool": "my-pool", "tier": "premium", "user": "alice"}
    assert isinstance(agent["handle"], ray.actor.ActorHandle)
    assert result["task_id"] == "my-task-001"
    assert result["preempted"] == []
    name, labels, duration = ray.get(agent["handle"].told.remote())
    assert (name, labels, duration) == (agent["name"], agent["labels"], 60.0)

    # 3: the pool is full, and nobody may be preempted
    assert submit(simple, "my-task-002", labels={"tier": "standard"}, priority=5.0)["success"]
    refused = submit(simple, "my-task-003", priority=5.0, labels=None)
    assert refused["success"] is False
    said, _, numbers = refused["error"].partition(": ")
    assert said == "Insufficient resources and no available preemption candidates"
    assert "lacks cpu 1, memory 2 MB of the cpu 1, memory 2 MB asked for" in numbers
    assert "priority 6 would be enough" in numbers
    assert refused["reason"] == "preemption_failed"
    assert refused["short"]["quota"] == {"cpu": 1.0, "memory": 2.0}
    held_by = {task_id for holder in refused["holders"] for task_id in holder["task_ids"]}
    assert held_by == {"my-task-001", "my-task-002"}

    # 2: the pool is full, and there is a candidate
    result = submit(simple, "my-task-004", priority=5.0)
    assert result["success"]
    (victim,) = result["preempted"]
    assert victim["task_id"] == "my-task-002"
    assert victim["pool_name"] == "my-pool"
    assert victim["reason"] == "label_based_preemption"
    running = {t["task_id"] for t in simple.scheduler.list_tasks()["tasks"]}
    assert running == {"my-task-001", "my-task-004"}
    assert quota(simple.scheduler, "my-pool")["used"] == {"cpu": 2.0, "memory": 4.0}

    for task_id in sorted(running):
        assert simple.complete(task_id)["success"]
    assert_nothing_held(simple.scheduler)


@pytest.mark.parametrize("named", [{}, {"for_pool": "premium-pool"}])
def test_scenario_4_cross_pool_on_request(scheduler, named):
    scheduler.create_pool("standard-pool", labels={"tier": "standard"}, resources={"cpu": 2.0})
    scheduler.create_pool("premium-pool", labels={"tier": "premium"}, resources={"cpu": 2.0})
    scheduler.update_preemption_policy(
        same_pool_priority_threshold=1.0,
        cross_pool_priority_threshold=5.0,
        enable_cross_pool_preemption=True,
    )

    def submitted(task_id, pool, priority):
        return scheduler.submit_task_with_preemption(
            task_id=task_id,
            pool_name=pool,
            resources={"cpu": 1.0},
            priority=priority,
            actor_class=MyTaskActor,
            actor_args=[1.0],
        )

    low = submitted("low-1", "standard-pool", 3.0)
    assert submitted("high-1", "premium-pool", 6.0)["success"]
    assert submitted("high-2", "premium-pool", 6.0)["success"]
    # automatic preemption has no candidate: 6 - 3 is below the cross-pool threshold
    assert submitted("high-3", "premium-pool", 6.0)["reason"] == "preemption_failed"
    on_request = scheduler.preempt_task("low-1", **named)
    assert on_request["success"]
    assert [p["task_id"] for p in on_request["preempted"]] == ["low-1"]
    gone = scheduler.delete_agent(low["agent"]["name"])
    assert gone == {"success": True, "already_gone": True}
    assert submitted("high-3", "premium-pool", 6.0)["success"]
    assert quota(scheduler, "standard-pool")["lent"] == {"cpu": 1.0}
    assert quota(scheduler, "premium-pool")["borrowed"] == {"cpu": 1.0}
    for task_id in ("high-1", "high-2", "high-3"):
        scheduler.complete_task(task_id, end_agent=True)
    assert_nothing_held(scheduler)


def test_automatic_cross_pool_preemption_lends_the_quota(scheduler):
    scheduler.create_pool("standard-pool", resources={"cpu": 1.0})
    scheduler.create_pool("premium-pool", resources={"cpu": 1.0})

    def submitted(task_id, pool, priority):
        return scheduler.submit_task_with_preemption(
            task_id=task_id,
            pool_name=pool,
            resources={"cpu": 1.0},
            priority=priority,
            actor_class=MyTaskActor,
            actor_args=[1.0],
        )

    assert submitted("low", "standard-pool", 1.0)["success"]
    assert submitted("high-1", "premium-pool", 9.0)["success"]
    result = submitted("high-2", "premium-pool", 9.0)
    assert [v["reason"] for v in result["preempted"]] == ["cross_pool_preemption"]
    assert quota(scheduler, "standard-pool")["lent"] == {"cpu": 1.0}
    assert scheduler.get_preemption_stats()["cross_pool_preemptions"] == 1
    # the lender's own task waits for the loan's end
    assert submitted("low-2", "standard-pool", 1.0)["reason"] == "preemption_failed"
    scheduler.complete_task("high-2", end_agent=True)
    assert submitted("low-2", "standard-pool", 1.0)["success"]


def test_the_policy_calls(scheduler):
    scheduler.update_preemption_policy(
        enable_label_preemption=True,
        label_preemption_rules={
            "tier": {"premium": ["standard", "batch"], "standard": ["batch"]},
            "user_type": {"admin": ["user", "guest"], "user": ["guest"]},
        },
    )
    policy = scheduler.update_preemption_policy(preemption_aggressiveness="high")
    assert policy["label_preemption_rules"]["user_type"] == {
        "admin": ["user", "guest"],
        "user": ["guest"],
    }


@pytest.mark.parametrize("missing", ["task_id", "pool", "actor_class"])
def test_missing_arguments_are_named(simple, missing):
    with pytest.raises(ValueError, match=r"task_id|pool|actor_class"):
        submit(simple, **{missing: None})
    assert_nothing_held(simple.scheduler)


def test_unknown_names_are_refused_and_agent_names_are_found(scheduler):
    scheduler.ensure_pool("pool", resources={"cpu": 1.0}, labels={"tier": "gold"})
    assert scheduler.delete_agent("nobody")["reason"] == "agent_not_found"
    assert scheduler.list_agents("nowhere")["reason"] == "pool_not_found"
    scheduler.create_agent("one", "pool", MyTaskActor, actor_args=[1.0])
    assert scheduler.preempt_task("one")["success"]
    assert scheduler.list_agents("pool")["agents"] == []
    assert scheduler.ensure_pool("pool", target_agents=2)["pool"]["labels"] == {"tier": "gold"}
    protected = scheduler.update_preemption_policy(protected_pools=["pool", "nowhere"])
    assert protected["success"]
    assert "'nowhere'" in protected["warnings"][0]
    assert "cannot be used" in scheduler.resize_pool("pool", {"cpu": 1e6})["warnings"][0]
