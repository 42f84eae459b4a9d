"""The six cases that the label preemption document lists, on a real scheduler."""

from __future__ import annotations

import pytest

from schedulemesh.core.agent_actor import AgentActor

TIER = {"tier": {"premium": ["standard", "batch"], "standard": ["batch"]}}
CLASSES = {
    "priority_class": {
        "critical": ["high", "normal", "low"],
        "high": ["normal", "low"],
        "normal": ["low"],
    }
}
USERS = {"user_tier": {"admin": ["vip", "regular"], "vip": ["regular"]}}


@pytest.fixture
def running(scheduler):
    """Registers a running task with these labels."""

    def register(task_id, pool="pool-a", priority=5.0, **labels):
        answer = scheduler.register_running_task(
            task_id=task_id,
            agent_name=f"on-{task_id}",
            pool_name=pool,
            priority=priority,
            labels=labels,
        )
        assert answer["success"]

    return register


@pytest.fixture
def asked(scheduler):
    """Evaluates an incoming task with these labels; the candidates' ids and reasons."""

    def evaluate(pool="pool-a", priority=5.0, **labels):
        answer = scheduler.evaluate_preemption(
            incoming_task_priority=priority,
            incoming_task_pool=pool,
            incoming_task_labels=labels,
        )
        found = {c["task_id"]: c["reason"] for c in answer["candidates"]}
        assert answer["should_preempt"] is bool(found)
        return found

    return evaluate


def by_label(*task_ids):
    return dict.fromkeys(task_ids, "label_based_preemption")


def test_tier_labels_give_graded_preemption(scheduler, running, asked):
    scheduler.update_preemption_policy(label_preemption_rules=TIER, label_priority_threshold=0.5)
    running("batch-job", tier="batch")
    running("standard-job", tier="standard")
    running("premium-job", tier="premium")
    assert asked(tier="premium") == by_label("standard-job", "batch-job")
    assert asked(tier="standard") == by_label("batch-job")
    assert asked(tier="batch") == {}


def test_priority_class_labels_give_preemption(scheduler, running, asked):
    scheduler.update_preemption_policy(label_preemption_rules=CLASSES)
    for level in ("critical", "high", "normal", "low"):
        running(level, priority_class=level)
    assert asked(priority_class="critical") == by_label("high", "normal", "low")
    assert asked(priority_class="high") == by_label("normal", "low")
    assert asked(priority_class="normal") == by_label("low")
    assert asked(priority_class="low") == {}


def test_label_rules_are_checked_before_pool_rules(scheduler, running, asked):
    scheduler.update_preemption_policy(
        label_preemption_rules={"tier": {"premium": ["standard"]}},
        label_priority_threshold=0.5,
        cross_pool_priority_threshold=10.0,
    )
    running("standard-in-a", tier="standard")
    assert asked(pool="pool-b", priority=7.0, tier="premium") == by_label("standard-in-a")
    assert asked(pool="pool-b", priority=7.0) == {}


def test_any_of_several_label_keys_is_enough(scheduler, running, asked):
    scheduler.update_preemption_policy(label_preemption_rules={**TIER, **USERS, **CLASSES})
    running("by-tier", tier="batch", user_tier="admin")
    running("by-user", user_tier="regular", priority=10.0)
    running("by-class", priority_class="low")
    running("by-none", team="llm")
    labels = {"tier": "standard", "user_tier": "admin", "priority_class": "normal"}
    assert asked(priority=6.0, **labels) == {
        **by_label("by-tier", "by-user", "by-class"),
        "by-none": "same_pool_preemption",
    }


def test_disabled_labels_fall_back_to_pool_preemption(scheduler, running, asked):
    scheduler.update_preemption_policy(label_preemption_rules=TIER)
    running("batch-job", tier="batch")
    assert asked(tier="premium") == by_label("batch-job")
    scheduler.update_preemption_policy(enable_label_preemption=False)
    assert asked(tier="premium") == {}
    assert asked(priority=6.0, tier="premium") == {"batch-job": "same_pool_preemption"}
    assert asked(pool="pool-b", priority=9.0, tier="premium") == {}
    assert asked(pool="pool-b", priority=10.0, tier="premium") == {
        "batch-job": "cross_pool_preemption"
    }


def test_label_preemptions_are_counted(scheduler, running, asked):
    scheduler.update_preemption_policy(label_preemption_rules=TIER)
    scheduler.create_pool("pool-a", resources={"cpu": 2.0})
    for name in ("on-batch-job", "on-other-job"):
        scheduler.create_agent(name, "pool-a", AgentActor, resources={"cpu": 1.0})
    running("batch-job", tier="batch")
    running("other-job", priority=1.0)
    asked(priority=5.0, tier="premium")
    for task_id in ("batch-job", "other-job"):
        answer = scheduler.execute_preemption(task_id=task_id, agent_name=f"on-{task_id}")
        assert answer["success"]
    stats = scheduler.get_preemption_stats()
    assert stats["label_preemptions"] == 1
    assert stats["same_pool_preemptions"] == 1
    assert stats["cross_pool_preemptions"] == 0
    assert stats["total_preemptions"] == 2
    assert stats["running_tasks"] == 0
    assert [r["task_id"] for r in stats["recent_preemptions"]] == ["batch-job", "other-job"]
