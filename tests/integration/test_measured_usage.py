"""What agents really use on a real Ray: one that burns CPU, and one that waits."""

from __future__ import annotations

import threading
import time

import ray

from schedulemesh.core.agent_actor import AgentActor
from tests.integration.polling import until
from tests.metrics.metered import parsed


class Burner(AgentActor):
    """Says how many CPU seconds its process had used by when; a busy one burns a CPU until it is asked."""

    def __init__(self, name, labels, *, busy):
        super().__init__(name, labels)
        self.used = []
        self.note()
        self.asked = threading.Event()
        self.burning = threading.Thread(target=self.burn, daemon=True)
        if busy:
            self.burning.start()

    def note(self) -> None:
        self.used.append((time.monotonic(), time.process_time()))

    def burn(self) -> None:
        while not self.asked.is_set():
            if time.monotonic() - self.used[-1][0] > 0.02:
                self.note()

    def burned(self) -> list[tuple[float, float]]:
        self.asked.set()
        self.burning.join()
        self.note()
        return self.used


def rates(used: list[tuple[float, float]], least_s: float, most_s: float) -> list[float]:
    """The CPUs used between any two of these moments that are so many seconds apart."""
    return [
        (cpu - before) / (at - began)
        for n, (began, before) in enumerate(used)
        for at, cpu in used[n + 1 :]
        if least_s <= at - began <= most_s
    ]


def test_a_busy_agent_uses_what_it_burns_and_an_idle_one_next_to_nothing(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 4.0})

    def submit(name):
        answer = scheduler.submit_task_with_preemption(
            name,
            "pool",
            Burner,
            resources={"cpu": 1.0},
            agent_name=name,
            actor_kwargs={"busy": name == "busy"},
        )
        return answer["agent"]["handle"]

    # It is measured over the second that begins a second after its start.
    busy = submit("busy")
    submit("idle")

    def usage():
        agents = {a["name"]: a["usage"] for a in scheduler.list_agents()["agents"]}
        return agents if all(agents.values()) else None

    found = until(usage, "nothing is measured")
    shown = parsed(scheduler.metrics_text(agents=True))
    by_pool = scheduler.get_metrics("pool", names=["cpu_used"])["metrics"]
    # Its share of a busy machine differs from second to second. The system counts in hundredths of a second.
    possible = rates(ray.get(busy.burned.remote()), 1.0, 3.0)
    assert min(possible) - 0.1 <= found["busy"]["cpu"] <= max(possible) + 0.1
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
