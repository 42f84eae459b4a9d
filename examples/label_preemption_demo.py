"""Label rules: service tiers, priority classes, tenants; and label rules apply before pool rules.

Run it with ``python examples/label_preemption_demo.py``.
"""

from __future__ import annotations

import textwrap

from schedulemesh.core import RayScheduler
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler

RULES = {
    "tier": {"premium": ["standard", "batch"], "standard": ["batch"]},
    "priority_class": {
        "critical": ["high", "normal", "low"],
        "high": ["normal", "low"],
        "normal": ["low"],
    },
    "user_tier": {"admin": ["vip", "regular"], "vip": ["regular"]},
}


def main() -> None:
    mesh = SimpleScheduler("label-preemption-demo")
    try:
        mesh.configure_preemption(
            enable_label_preemption=True,
            label_preemption_rules=RULES,
            label_priority_threshold=0.5,
            cross_pool_priority_threshold=10.0,
        )
        tiers(mesh)
        priority_classes(mesh.scheduler)
        tenants(mesh.scheduler)
        label_before_pool(mesh.scheduler)
    finally:
        mesh.shutdown()


def tiers(mesh: SimpleScheduler) -> None:
    print("1. tier: premium evicts standard, at the same priority, on real agents")
    mesh.ensure_pool("serving", resources={"cpu": 0.5})
    job = {"pool": "serving", "actor_class": AgentActor, "resources": {"cpu": 0.5}, "priority": 5.0}
    standard = mesh.submit(task_id="report", labels={"tier": "standard"}, **job)
    assert standard["success"], standard
    second = mesh.submit(task_id="second-report", labels={"tier": "standard"}, **job)
    assert second["reason"] == "preemption_failed", second
    message = f"a second standard job is refused: {second['error']}"
    print(textwrap.indent(textwrap.fill(message, 76), "   "))
    premium = mesh.submit(task_id="checkout", labels={"tier": "premium"}, **job)
    assert premium["success"], premium
    victim = premium["preempted"][0]
    assert (victim["task_id"], victim["reason"]) == ("report", "label_based_preemption"), victim
    print(f"   {premium['task_id']} runs; {victim['task_id']} was evicted: {victim['reason']}")
    batch = mesh.submit(task_id="cleanup", labels={"tier": "batch"}, **{**job, "priority": 9.0})
    assert not batch["success"], batch
    print(f"   batch at priority 9 cannot take it back: {batch['turned_away']}")
    mesh.complete("checkout")


def priority_classes(scheduler: RayScheduler) -> None:
    print("2. priority_class: critical > high > normal > low; a longer chain of rules counts more")
    for level in ("high", "normal", "low"):
        scheduler.register_running_task(
            f"{level}-job", "worker-1", "jobs", priority=5.0, labels={"priority_class": level}
        )
    found = scheduler.evaluate_preemption(
        incoming_task_priority=5.0,
        incoming_task_pool="jobs",
        incoming_task_labels={"priority_class": "critical"},
    )
    order = [c["task_id"] for c in found["candidates"]]
    assert order == ["low-job", "normal-job", "high-job"], order
    for candidate in found["candidates"]:
        print(f"   {candidate['task_id']}: effective difference {candidate['effective_delta']:g}")
    for level in ("high", "normal", "low"):
        scheduler.complete_task(f"{level}-job")


def tenants(scheduler: RayScheduler) -> None:
    print("3. user_tier: an admin evicts a regular user at any priority, never the reverse")
    scheduler.register_running_task(
        "user-task", "shared-worker", "shared", priority=10.0, labels={"user_tier": "regular"}
    )
    found = scheduler.evaluate_preemption(6.0, "shared", {"user_tier": "admin"})
    assert found["should_preempt"], found
    candidate = found["candidates"][0]
    print(f"   priority difference {candidate['priority_delta']:g}, {candidate['reason']}")
    scheduler.complete_task("user-task")
    scheduler.register_running_task(
        "admin-task", "shared-worker", "shared", priority=1.0, labels={"user_tier": "admin"}
    )
    found = scheduler.evaluate_preemption(10.0, "shared", {"user_tier": "regular"})
    assert not found["should_preempt"], found
    print(f"   a regular user of priority 10 against an admin of 1: {found['reason']}")
    scheduler.complete_task("admin-task")


def label_before_pool(scheduler: RayScheduler) -> None:
    print("4. Label rules apply before pool rules: across pools, far below the threshold of 10")
    scheduler.register_running_task(
        "standard-in-a", "agent-a", "pool-a", priority=5.0, labels={"tier": "standard"}
    )
    found = scheduler.evaluate_preemption(7.0, "pool-b", {"tier": "premium"})
    assert found["candidates"][0]["reason"] == "label_based_preemption", found
    print(f"   with labels: {found['candidates'][0]['reason']}")
    scheduler.update_preemption_policy(enable_label_preemption=False)
    found = scheduler.evaluate_preemption(7.0, "pool-b", {"tier": "premium"})
    assert found["reason"] == "below_cross_pool_threshold", found
    print(f"   without:     {found['reason']} (7 - 5 < 10)")
    scheduler.complete_task("standard-in-a")


if __name__ == "__main__":
    main()
