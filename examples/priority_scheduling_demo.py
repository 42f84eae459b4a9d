"""Jobs of five priorities and a pool for two agents: the most urgent run, the others are refused or evicted.

Run it with ``python examples/priority_scheduling_demo.py``.
"""

from __future__ import annotations

from typing import Any

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = 10.0, 5.0, 1.0, 0.5, 0.1


def main() -> None:
    mesh = SimpleScheduler("priority-demo")
    try:
        run_demo(mesh)
    finally:
        mesh.shutdown()


def run_demo(mesh: SimpleScheduler) -> None:
    mesh.ensure_pool("shared", resources={"cpu": 1.0})
    mesh.configure_preemption(same_pool_priority_threshold=0.5)

    print("The pool is empty, two jobs start")
    submit(mesh, "nightly-report", LOW)
    submit(mesh, "feature-build", NORMAL)

    print("A dry run: what would a job of high priority do?")
    plan = submit(mesh, "model-eval", HIGH, dry_run=True)
    assert [v["task_id"] for v in plan["preempted"]] == ["nightly-report"], plan
    assert running(mesh) == {"nightly-report", "feature-build"}, running(mesh)

    print("The same submission for real, and a critical one")
    submit(mesh, "model-eval", HIGH)
    submit(mesh, "incident-fix", CRITICAL)
    assert running(mesh) == {"model-eval", "incident-fix"}, running(mesh)

    print("Nothing is evicted for a background job")
    refused = submit(mesh, "cache-warmup", BACKGROUND)
    assert refused["reason"] == "preemption_failed", refused
    assert refused["short"] == {"quota": {"cpu": 0.5}}, refused
    print(f"  short of {refused['short']}; held by", end=" ")
    print(", ".join(holder["task_ids"][0] for holder in refused["holders"]))

    print("The urgent work is completed; evicted jobs run again")
    mesh.complete("incident-fix")
    mesh.complete("model-eval")
    for task_id in ("feature-build", "nightly-report"):
        answer = mesh.restore_task(mesh.get_saved_state(task_id)["saved_state"])
        assert answer["success"], answer
        print(f"  {task_id} runs again on {answer['agent']['name']}")
    assert running(mesh) == {"nightly-report", "feature-build"}, running(mesh)

    for record in mesh.get_preemption_stats()["recent_preemptions"]:
        print(f"  record: {record['task_id']} (priority {record['priority']}), {record['reason']}")


def submit(
    mesh: SimpleScheduler, task_id: str, priority: float, dry_run: bool = False
) -> dict[str, Any]:
    job = {"task_id": task_id, "pool": "shared", "actor_class": AgentActor, "priority": priority}
    resources = {"cpu": 0.5}
    if dry_run:
        answer = mesh.submit(**job, resources=resources, dry_run=True)
    else:
        answer = mesh.submit_spec(SimpleTaskSpec(**job, resources=resources))
    if not answer["success"]:
        print(f"  {task_id} (priority {priority}): refused, {answer['reason']}")
    else:
        evicted = [f"{v['task_id']} (score {v['preempt_score']:g})" for v in answer["preempted"]]
        verb = "would run" if dry_run else "runs"
        print(f"  {task_id} (priority {priority}): {verb}, evicted: {evicted or 'none'}")
    return dict(answer)


def running(mesh: SimpleScheduler) -> set[str]:
    return {task["task_id"] for task in mesh.scheduler.list_tasks()["tasks"]}


if __name__ == "__main__":
    main()
