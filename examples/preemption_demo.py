"""The basic flow: an agent works, a more urgent task arrives, and the same agent runs it.

Run it with ``python examples/preemption_demo.py``; docs/preemption_guide.md explains each step.
"""

from __future__ import annotations

import time

import ray

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler


def main() -> None:
    mesh = SimpleScheduler("preemption-demo")
    try:
        run_demo(mesh)
    finally:
        mesh.shutdown()


def run_demo(mesh: SimpleScheduler) -> None:
    scheduler = mesh.scheduler

    print("1. A pool with a quota for two agents, and one agent in it")
    scheduler.create_pool(
        name="compute-pool",
        labels={"tier": "standard"},
        resources={"cpu": 1.0, "memory": 64.0},
        target_agents=2,
    )
    made = scheduler.create_agent(name="agent-1", pool="compute-pool", actor_class=AgentActor)
    assert made["success"], made
    agent = made["agent"]["handle"]
    print(f"   agent-1 holds {made['agent']['resources']}: the quota divided by target_agents")

    print("2. It works on a task of low priority, which is registered")
    work = agent.process.remote({"data": "some work"}, "low-job", simulated_duration=60.0)
    scheduler.register_running_task(
        task_id="low-job",
        agent_name="agent-1",
        pool_name="compute-pool",
        priority=1.0,
        estimated_duration=60.0,
        payload={"data": "some work"},
    )

    print("3. A task of priority 5 arrives: which tasks may it evict?")
    found = scheduler.evaluate_preemption(
        incoming_task_priority=5.0, incoming_task_pool="compute-pool"
    )
    assert found["should_preempt"], found
    first = found["candidates"][0]
    print(f"   {first['task_id']}: {first['reason']}, score {first['preempt_score']:.2f} =")
    print(f"   {first['effective_delta']:g} + 0.1 x {first['remaining_time']:.1f} s remaining")

    print("4. The task is saved and cancelled; the agent stays")
    began = time.monotonic()
    answer = scheduler.execute_preemption(task_id=first["task_id"], agent_name=first["agent_name"])
    assert answer["success"], answer
    assert answer["cancel_success"], answer
    ended = ray.get(work)
    assert ended["status"] == "cancelled", ended
    print(f"   process() returned {ended['status']!r} after {time.monotonic() - began:.2f} s")
    print(f"   saved payload: {answer['saved_state']['payload']}")
    assert answer["saved_state"]["payload"] == {"data": "some work"}, answer["saved_state"]

    print("5. The urgent task runs on the same agent")
    scheduler.register_running_task("urgent-job", "agent-1", "compute-pool", priority=5.0)
    done = ray.get(agent.process.remote({"data": "urgent"}, "urgent-job"))
    assert done["status"] == "completed", done
    assert done["agent"] == "agent-1", done
    scheduler.complete_task("urgent-job")
    stats = scheduler.get_preemption_stats()
    assert stats["same_pool_preemptions"] == 1, stats
    assert stats["running_tasks"] == 0, stats
    print(f"   done by {done['agent']}; preemptions so far: {stats['total_preemptions']}")


if __name__ == "__main__":
    main()
