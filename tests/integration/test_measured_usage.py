"""What agents really use on a real Ray: one that burns CPU, and one that waits."""

from __future__ import annotations

import time

import ray

from schedulemesh.core.agent_actor import AgentActor
from tests.integration.polling import until
from tests.metrics.metered import parsed


class Burner(AgentActor):
    """Burns one CPU for some time, and says how many seconds of it."""

    def burn(self, seconds: float) -> tuple[float, float]:
        began, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            pass
        return time.process_time() - cpu, time.monotonic() - began


def test_a_busy_agent_uses_what_it_burns_and_an_idle_one_next_to_nothing(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 4.0})

    def submit(name):
        answer = scheduler.submit_task_with_preemption(
            name, "pool", Burner, resources={"cpu": 1.0}, agent_name=name
        )
        return answer["agent"]["handle"]

    # It is measured over the second that begins a second after its start.
    burning = submit("busy").burn.remote(12.0)
    submit("idle")

    def usage():
        agents = {a["name"]: a["usage"] for a in scheduler.list_agents()["agents"]}
        return agents if all(agents.values()) else None

    found = until(usage, "nothing is measured")
    shown = parsed(scheduler.metrics_text(agents=True))
    by_pool = scheduler.get_metrics("pool", names=["cpu_used"])["metrics"]
    spent, elapsed = ray.get(burning)
    rate = spent / elapsed
    # Another share of a busy machine may have been its while it was measured than on the whole.
    assert abs(found["busy"]["cpu"] - rate) < 0.4
    assert found["busy"]["cpu"] > 3 * found["idle"]["cpu"]
    assert found["idle"]["cpu"] < 0.25
    assert found["busy"]["memory_mb"] > 20.0
    assert found["busy"]["gpu_utilization"] is None, "it holds no GPU"
    own = [
        shown["schedulemesh_agent_measured_usage", "pool", name, "cpu"] for name in ("busy", "idle")
    ]
    assert own == [found["busy"]["cpu"], found["idle"]["cpu"]]
    assert abs(shown["schedulemesh_pool_measured_usage", "pool", "cpu"] - sum(own)) < 0.01
    assert [entry["agents"] for entry in by_pool] == [2]
