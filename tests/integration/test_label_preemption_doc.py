"""Every call that the document on label preemption prints."""

from __future__ import annotations

RULES = {
    "tier": {
        "premium": ["standard", "batch"],
        "standard": ["batch"],
    },
    "user_tier": {
        "admin": ["vip", "regular"],
        "vip": ["regular"],
    },
    "priority_class": {
        "critical": ["high", "normal", "low"],
        "high": ["normal", "low"],
        "normal": ["low"],
    },
}


def test_rules_of_several_dimensions(scheduler):
    policy = scheduler.update_preemption_policy(
        label_preemption_rules=RULES,
        label_priority_threshold=0.5,
        enable_label_preemption=True,
    )
    assert policy["label_preemption_rules"] == RULES


def test_scenario_1_graded_services(scheduler):
    scheduler.update_preemption_policy(
        label_preemption_rules={
            "tier": {
                "premium": ["standard", "batch"],
                "standard": ["batch"],
            }
        },
        label_priority_threshold=0.5,
    )
    scheduler.register_running_task(
        task_id="standard-job",
        agent_name="worker-1",
        pool_name="pool-a",
        priority=5.0,
        labels={"tier": "standard"},
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=5.0,
        incoming_task_pool="pool-a",
        incoming_task_labels={"tier": "premium"},
    )
    assert eval_result["should_preempt"] is True


def test_scenario_2_tenants(scheduler):
    scheduler.update_preemption_policy(
        label_preemption_rules={
            "user_tier": {
                "admin": ["vip", "regular"],
                "vip": ["regular"],
            }
        },
    )
    scheduler.register_running_task(
        task_id="regular-task",
        agent_name="worker",
        pool_name="shared-pool",
        priority=10.0,
        labels={"user_tier": "regular"},
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=6.0,
        incoming_task_pool="shared-pool",
        incoming_task_labels={"user_tier": "admin"},
    )
    assert eval_result["should_preempt"] is True


def test_scenario_3_across_pools(scheduler):
    scheduler.update_preemption_policy(
        label_preemption_rules={
            "tier": {"premium": ["standard"]},
        },
        label_priority_threshold=0.5,
        cross_pool_priority_threshold=10.0,
    )
    scheduler.register_running_task(
        task_id="standard-in-a",
        agent_name="agent-a",
        pool_name="pool-a",
        priority=5.0,
        labels={"tier": "standard"},
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=7.0,
        incoming_task_pool="pool-b",
        incoming_task_labels={"tier": "premium"},
    )
    assert eval_result["should_preempt"] is True
    assert eval_result["candidates"][0]["reason"] == "label_based_preemption"
