"""A training that is evicted for an urgent task waits in the queue and returns by itself, at its step.

Run it with ``python examples/queue_demo.py``; docs/queueing.md explains each step.
"""

from __future__ import annotations

import threading

import ray

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

STEP_S = 0.02


class Training(AgentActor):
    """Trains from its construction on, without anybody calling it; its state is the step."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        super().__init__(name, labels)
        self._step, self._began_at = 0, 0
        self._moved = threading.Condition()
        self._ended = threading.Event()
        threading.Thread(target=self._train, daemon=True).start()

    def _train(self) -> None:
        while not self._ended.wait(STEP_S):
            with self._moved:
                self._step += 1
                self._moved.notify_all()

    def reach(self, step: int) -> tuple[int, int]:
        """Wait for a step; returns it, and the step at which this object began."""
        with self._moved:
            self._moved.wait_for(lambda: self._step >= step)
            return self._step, self._began_at

    def save_state(self) -> dict[str, int]:
        with self._moved:
            self._ended.set()
            return {"step": self._step}

    def restore_state(self, saved: dict[str, int]) -> None:
        with self._moved:
            self._step = self._began_at = saved["step"]


def main() -> None:
    mesh = SimpleScheduler("queue-demo")
    try:
        run_demo(mesh)
    finally:
        mesh.shutdown()


def run_demo(mesh: SimpleScheduler) -> None:
    print("1. A pool with room for one task, whose evicted tasks join the queue again")
    mesh.ensure_pool("research", resources={"cpu": 1.0}, on_preempted="requeue")

    print("2. A training starts; submit returns when it runs")
    training = mesh.submit(
        "training", pool="research", actor_class=Training, priority=1.0, wait=True
    )
    assert training["success"], training
    step, began = ray.get(training["agent"]["handle"].reach.remote(20))
    print(f"   {training['agent']['name']} is at step {step}, after a start at step {began}")

    print("3. More trainings are submitted at once, and wait")
    answer = mesh.submit_many(
        SimpleTaskSpec(
            task_id=f"trial-{n}", pool="research", actor_class=Training, priority=1.0, queue=True
        )
        for n in range(3)
    )
    assert [one["state"] for one in answer["results"]] == ["queued"] * 3, answer
    show(mesh)

    print("4. An urgent task evicts the training, and the call returns when it runs")
    urgent = mesh.submit("urgent", pool="research", actor_class=AgentActor, priority=9.0, wait=60.0)
    assert urgent["success"], urgent
    print(f"   {urgent['task_id']} runs; evicted: {[t['task_id'] for t in urgent['preempted']]}")
    assert show(mesh)[0] == "training", "it was the first to arrive"

    print("5. The urgent task is done; the training returns by itself")
    mesh.complete("urgent")
    agent = returned(mesh, "training")
    step, began = ray.get(agent.reach.remote(0))
    assert began >= 20, began
    later, _ = ray.get(agent.reach.remote(step + 20))
    print(f"   it continued at step {began}, and is at step {later} now")

    print("6. The trials are cancelled")
    cancelled = mesh.cancel_tasks([task["task_id"] for task in mesh.list_queue()["tasks"]])
    assert cancelled["success"], cancelled
    print(f"   {', '.join(cancelled['cancelled'])}")


def show(mesh: SimpleScheduler) -> list[str]:
    """Print the queue; returns its ids."""
    tasks = mesh.list_queue("research")["tasks"]
    for task in tasks:
        evicted = f", evicted {task['preemptions']}x" if task["preemptions"] else ""
        print(f"   {task['position']}. {task['task_id']} (priority {task['priority']:g}{evicted})")
    return [task["task_id"] for task in tasks]


def returned(mesh: SimpleScheduler, task_id: str) -> ray.actor.ActorHandle:
    """The agent of a task, once it runs."""
    waited = mesh.wait(task_id, timeout=60.0, until="running")
    assert waited["done"] == [task_id], waited
    (agent,) = (agent for agent in mesh.list_agents()["agents"] if agent["tasks"] == [task_id])
    return agent["handle"]


if __name__ == "__main__":
    main()
