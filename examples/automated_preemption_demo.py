"""A submission that evicts automatically; then, across pools, a manual eviction.

Phase 1: one call checks quota, chooses a victim, saves it, terminates it and starts the incoming task.
Phase 2: the priority difference is too small for another pool's task, so an operator frees the quota.
Run it with ``python examples/automated_preemption_demo.py``.
"""

from __future__ import annotations

import textwrap
from typing import Any

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler

JOB: dict[str, Any] = {"actor_class": AgentActor, "resources": {"cpu": 0.5}}


def main() -> None:
    mesh = SimpleScheduler("automated-preemption-demo")
    try:
        mesh.ensure_pool("standard", labels={"tier": "standard"}, resources={"cpu": 0.5})
        mesh.ensure_pool("premium", labels={"tier": "premium"}, resources={"cpu": 0.5})
        within_a_pool(mesh)
        across_pools(mesh)
    finally:
        mesh.shutdown()


def within_a_pool(mesh: SimpleScheduler) -> None:
    print("Phase 1: within one pool")
    free = mesh.submit(task_id="etl", pool="standard", priority=3.0, **JOB)
    assert free["success"], free
    assert not free["preempted"], free
    print(f"  etl: quota was free, it runs on {free['agent']['name']}")

    taken = mesh.submit(task_id="dashboard", pool="standard", priority=6.0, **JOB)
    assert taken["success"], taken
    victim = taken["preempted"][0]
    assert (victim["task_id"], victim["reason"]) == ("etl", "same_pool_preemption"), victim
    print(f"  dashboard: evicted {victim['task_id']} ({victim['reason']})")

    refused = mesh.submit(task_id="cleanup", pool="standard", priority=5.0, **JOB)
    assert refused["reason"] == "preemption_failed", refused
    message = f"cleanup: refused. {refused['error']}; {refused['turned_away']}"
    print(textwrap.indent(textwrap.fill(message, 76), "  "))


def across_pools(mesh: SimpleScheduler) -> None:
    print("Phase 2: across pools, manually")
    mesh.submit(task_id="checkout", pool="premium", priority=8.0, **JOB)
    refused = mesh.submit(task_id="fraud-check", pool="premium", priority=8.0, **JOB)
    assert refused["reason"] == "preemption_failed", refused
    assert refused["turned_away"]["below_cross_pool_threshold"] == 1, refused
    print("  fraud-check: refused. 8 - 6 is below the cross-pool threshold of 5")

    agent_name = next(
        task["agent_name"]
        for task in mesh.scheduler.list_tasks()["tasks"]
        if task["task_id"] == "dashboard"
    )
    freed = mesh.scheduler.preempt_task(task_id="dashboard", for_pool="premium")
    assert freed["success"], freed
    deleted = mesh.delete_agent(agent_name)
    assert deleted["success"], deleted
    print(
        f"  manually: dashboard preempted, {agent_name} terminated;"
        "\n  its quota is held for premium"
    )

    late = mesh.submit(task_id="etl", pool="standard", priority=3.0, **JOB)
    assert not late["success"], late
    print("  etl is refused: the freed quota is held for 60 s")

    started = mesh.submit(task_id="fraud-check", pool="premium", priority=8.0, **JOB)
    assert started["success"], started
    lent, borrowed = loans(mesh)
    assert lent == borrowed == {"cpu": 0.5}, (lent, borrowed)
    print(f"  fraud-check runs in premium with a loan of {lent} from standard")

    mesh.complete("fraud-check")
    assert loans(mesh) == ({}, {}), loans(mesh)
    print("  fraud-check is completed, and the loan has ended")
    stats = mesh.stats()
    assert stats["total_preemptions"] == 2, stats
    print(f"  preemptions: {stats['total_preemptions']}, pools: {sorted(stats['pools'])}")


def loans(mesh: SimpleScheduler) -> tuple[dict[str, Any], dict[str, Any]]:
    """What standard lends, and what premium borrows."""
    pools = mesh.stats()["pools"]
    return pools["standard"]["lent"], pools["premium"]["borrowed"]


if __name__ == "__main__":
    main()
