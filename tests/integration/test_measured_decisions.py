"""What agents report on a real Ray decides who is evicted, and what may start before a waiting task."""

from __future__ import annotations

import time

import pytest
import ray

from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from tests.integration.polling import until


class Worker(MetricsReportingAgent):
    """Reports what it is told to."""

    def report(self, **values: float) -> None:
        self.report_metrics(values, at_once=True)


def submit(scheduler, task_id, priority, **more):
    answer = scheduler.submit_task_with_preemption(
        task_id, "pool", Worker, agent_name=task_id, priority=priority, **more
    )
    assert answer["success"], answer
    return answer


def test_an_idle_agent_is_evicted_before_a_busy_one_and_the_explanation_says_why(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 4.0, "gpu": 2.0})
    one = {"resources": {"cpu": 1.0, "gpu": 1.0}}
    for task_id, used in (("idle", 0.0), ("busy", 95.0)):
        handle = submit(scheduler, task_id, 1.0, **one)["agent"]["handle"]
        ray.get(handle.report.remote(gpu_utilization=used))
    # By the order of victims alone it would be the one that started last.
    first, *_ = scheduler.evaluate_preemption(9.0, "pool")["candidates"]
    assert first["task_id"] == "busy"
    scheduler.update_preemption_policy(idle_gpu_percent=5.0, idle_gpu_s=1.0)
    shown = until(
        lambda: {
            agent["name"]: agent["idle_since"]
            for agent in scheduler.list_agents()["agents"]
            if agent["idle_since"]
        },
        "nobody is idle",
    )
    assert list(shown) == ["idle"]
    assert "preferred as a victim" in scheduler.explain("idle")["detail"]
    assert 'schedulemesh_gpus_idle{pool="pool"} 1\n' in scheduler.metrics_text()
    answer = submit(scheduler, "high", 9.0, **one)
    assert [victim["task_id"] for victim in answer["preempted"]] == ["idle"]
    eviction = scheduler.explain("idle")["eviction"]
    assert eviction["idle_since"] == shown["idle"]
    assert scheduler.explain("busy")["state"] == "running"


def test_measured_progress_changes_what_starts_before_a_waiting_task(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    scheduler.update_preemption_policy(measured_progress=True)
    running = submit(scheduler, "long", 5.0, resources={"cpu": 1.0}, estimated_duration=10_000.0)
    head = {"resources": {"cpu": 2.0}, "queue": True}
    assert submit(scheduler, "head", 5.0, **head)["state"] == "queued"
    before = scheduler.explain("head")["earliest_start"] - time.time()
    assert before == pytest.approx(10_000.0, abs=120.0)
    filler = {"resources": {"cpu": 1.0}, "queue": True, "estimated_duration": 8000.0}
    submit(scheduler, "first", 5.0, **filler)
    until(lambda: scheduler.explain("first")["state"] == "running", "it does not start")
    scheduler.complete_task("first", end_agent=True)
    handle = running["agent"]["handle"]
    ray.get(handle.report.remote(progress=0.001))
    until(lambda: _progress(scheduler) == 0.001, "the progress does not arrive")

    def measured():
        ray.get(handle.report.remote(progress=0.01))
        return scheduler.explain("long")["end_measured"]

    until(measured, "its end is not measured")
    left = scheduler.explain("long")["ends_at"] - time.time()
    assert 10.0 < left < 7000.0, "so little of it took a moment"
    assert "by the progress that it reports" in scheduler.explain("long")["detail"]
    until(
        lambda: scheduler.explain("head")["earliest_start"] - time.time() < 7000.0,
        "the reserved start does not follow",
    )
    assert submit(scheduler, "second", 5.0, **filler)["state"] == "queued"


def _progress(scheduler):
    tasks = {task["task_id"]: task for task in scheduler.list_tasks()["tasks"]}
    return tasks["long"]["last_metrics"].get("progress")
