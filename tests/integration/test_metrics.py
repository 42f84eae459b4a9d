"""Metrics of agents: the last one arrives, and one agent that reports without pause disturbs nobody."""

from __future__ import annotations

import os
import signal
import statistics
import time

import numpy as np
import pytest
import ray

from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from tests.integration.polling import until

ONE = {"cpu": 1.0}
#: Of so many reports without pause one is sent each tenth of a second, and the last one.
REPORTS, GAP_S = 3000, 0.1


class Training(MetricsReportingAgent):
    """Reports every step, as fast as it can."""

    def train(self, steps: int, **more) -> None:
        for step in range(1, steps + 1):
            self.report_metrics({"step": step, **more})

    def flood(self, reports: int) -> None:
        for count in range(1, reports + 1):
            self.report_metrics({"step": count}, at_once=True)
            time.sleep(0.0005)  # the rate at which it reports

    def report_as(self, name: str) -> bool:
        """As an agent that was made elsewhere would."""
        other = MetricsReportingAgent(name, supervisor=self.supervisor)
        message = b"\x83\xaaagent_name\xa1b\xabincarnation\xc0\xa7metrics\x81\xa1x\x01"
        assert other.name == name
        return ray.get(self.supervisor.report_metrics.remote(message))


@pytest.fixture
def pool(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 8.0})
    return scheduler


def submit(pool, task_id, **more):
    answer = pool.submit_task_with_preemption(task_id, "pool", Training, resources=ONE, **more)
    assert answer["success"], answer
    return answer["agent"]["handle"]


def metrics_of(pool, task_id):
    tasks = {task["task_id"]: task for task in pool.list_tasks()["tasks"]}
    return tasks[task_id]["last_metrics"]


def test_the_last_report_arrives_and_its_values_are_kept(pool):
    handle = submit(pool, "t")
    more = {"loss": np.float32(0.5), "count": np.int64(3), "nested": {"a": [1, {"b": None}]}}
    ray.get(handle.train.remote(60, **more))
    last = {"step": 60, "loss": 0.5, "count": 3, "nested": {"a": [1, {"b": None}]}}
    until(lambda: metrics_of(pool, "t") == last, lambda: str(metrics_of(pool, "t")))


@pytest.mark.parametrize("by", ["its payload", "a preserver"])
def test_an_eviction_sees_what_was_held_back(pool, by):
    if by == "a preserver":
        pool.register_state_handlers("pool", preserver=lambda task: {"seen": task.last_metrics})
    handle = submit(pool, "t", actor_kwargs={"report_interval": 3600.0})
    ray.get(handle.train.remote(1))
    until(lambda: metrics_of(pool, "t"), "no metrics arrive")
    ray.get(handle.train.remote(60))
    saved = pool.preempt_task("t")["preempted"][0]["saved_state"]
    assert saved["seen" if by == "a preserver" else "last_metrics"] == {"step": 60}


def test_a_supervisor_that_came_back_saves_the_last_report(pool):
    handle = submit(pool, "t", actor_kwargs={"report_interval": 3600.0})
    ray.get(handle.train.remote(1))
    until(lambda: metrics_of(pool, "t"), "no metrics arrive")
    os.kill(pool.about()["pid"], signal.SIGKILL)
    assert metrics_of(pool, "t") == {}, "they are kept in memory only"
    pool.register_state_handlers("pool", preserver=lambda task: {"seen": task.last_metrics})
    saved = pool.preempt_task("t")["preempted"][0]["saved_state"]
    assert saved["seen"] == {"step": 1}


def test_an_agent_cannot_report_for_another_one(pool):
    submit(pool, "b", agent_name="b")
    handle = submit(pool, "t", actor_kwargs={"supervisor": pool.supervisor_handle()})
    assert ray.get(handle.report_as.remote("b")) is False
    assert metrics_of(pool, "b") == {}


def latencies(pool, seconds):
    """How long calls take that have nothing to do with metrics, in seconds."""
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        pool.get_preemption_policy()
        found.append(time.perf_counter() - began)
        time.sleep(0.005)  # the rate at which it asks
    return found


def test_an_agent_that_reports_continuously_does_not_slow_others(pool, record_property):
    handle = submit(pool, "t")
    quiet = statistics.median(latencies(pool, 2.0))
    began = time.monotonic()
    flooding = handle.flood.remote(REPORTS)
    until(lambda: metrics_of(pool, "t"), "no metrics arrive")
    disturbed = statistics.median(latencies(pool, 2.0))
    ray.get(flooding)
    until(lambda: metrics_of(pool, "t") == {"step": REPORTS}, "the last report does not arrive")
    seconds = time.monotonic() - began
    record_property("latency", (quiet, disturbed))
    print(f"quiet {quiet * 1e3:.1f} ms, disturbed {disturbed * 1e3:.1f} ms")
    # So others never wait for a backlog of its reports, however busy the machine is.
    (arrived,) = pool.get_metrics("pool", names=["step"])["metrics"]
    assert arrived["count"] <= seconds / GAP_S + 1


def test_reports_are_aggregated_by_agent_and_by_pool(pool):
    for task_id in ("t", "u"):
        handle = submit(pool, task_id, actor_kwargs={"report_interval": 0.0})
        ray.get(handle.train.remote(3, loss=0.5))
        until(
            lambda task=task_id: metrics_of(pool, task).get("step") == 3, "not all reports arrive"
        )
    entries = pool.get_metrics("pool", names=["loss", "step"])["metrics"]
    assert [entry["metric"] for entry in entries] == ["loss", "step"]
    loss, step = entries
    assert (loss["pool_name"], loss["agents"], loss["p95"], loss["min"]) == ("pool", 2, 0.5, 0.5)
    assert (step["last"], step["max"]) == (3, 3)
    single = pool.get_metrics(names=["step"])["metrics"]
    assert [entry["agents"] for entry in single] == [1, 1]
    assert sum(entry["count"] for entry in single) == step["count"]
