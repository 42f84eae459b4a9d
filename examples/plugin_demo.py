"""Custom scheduling strategies: long jobs get a lower priority, and tasks go to the least used pool.

Run it with ``python -m examples.plugin_demo``.
"""

from __future__ import annotations

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.plugins import ResourceDomain, SchedulingStrategyPlugin, TaskView
from schedulemesh.simple import SimpleScheduler


class LongJobsLast(SchedulingStrategyPlugin):
    """Lowers the priority by one for each hour of estimated duration, by at most four."""

    def priority(self, task: TaskView) -> float | None:
        if task.estimated_duration is None:
            return None
        return task.priority - min(4.0, task.estimated_duration // 3600)


class LeastUsedPool(SchedulingStrategyPlugin):
    """Prefers pools with the largest free fraction of their CPUs; leaves nodes to the built-in strategy."""

    def score(self, task: TaskView, resources: ResourceDomain) -> float | None:
        cpus = task.resources["cpu"]
        if resources.kind != "pool" or not cpus:
            return None
        return float((resources.free["cpu"] - cpus) / resources.total["cpu"])


def main() -> None:
    mesh = SimpleScheduler("plugin-demo", strategies=[LongJobsLast(), LeastUsedPool()])
    try:
        run_demo(mesh)
    finally:
        mesh.shutdown()


def run_demo(mesh: SimpleScheduler) -> None:
    mesh.ensure_pool("small", {"team": "ml"}, {"cpu": 0.5})
    mesh.ensure_pool("large", {"team": "ml"}, {"cpu": 1.0})

    print("Two jobs of the same priority, one of ten minutes and one of three hours")
    submit(mesh, "short", 600.0)
    submit(mesh, "long", 3 * 3600.0)

    admitted = {task["task_id"]: task["priority"] for task in mesh.scheduler.list_tasks()["tasks"]}
    print(f"Admitted with priorities {admitted}")
    assert admitted == {"short": 5.0, "long": 2.0}, admitted

    for found in mesh.scheduler.strategies()["strategies"]:
        print(f"  {found['name']}: hooks {found['hooks']}, called {found['calls']} times")
        assert not found["disabled"], found


def submit(mesh: SimpleScheduler, task_id: str, seconds: float) -> None:
    answer = mesh.submit(
        task_id,
        actor_class=AgentActor,
        resources={"cpu": 0.25},
        estimated_duration=seconds,
        pool_selector={"team": "ml"},
    )
    assert answer["success"], answer
    print(f"  {task_id} runs in pool {answer['agent']['labels']['pool']}")


if __name__ == "__main__":
    main()
