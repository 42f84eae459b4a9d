"""Limits in time on real Ray: agents, jobs and leases are noticed, saved and ended when they are due."""

from __future__ import annotations

import sys
import textwrap
import threading

import pytest
import ray

from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from tests.integration.agents import Counter
from tests.integration.polling import quota, until

#: A script that saves when it is told that it ends, and completes when it has been started again.
RESUMING = """
    import sys, time
    from schedulemesh import job

    saved = job.checkpoint_dir() / "step"
    if saved.exists():
        print("attempt", job.attempt(), "from step", saved.read_text(), flush=True)
        sys.exit(0)
    while not job.preempted():
        time.sleep(0.02)  # between two looks, as a training has between two steps
    saved.write_text("7")
"""


class Worker(MetricsReportingAgent):
    """Reports what it is told to."""

    def report(self, **values: float) -> None:
        self.report_metrics(values, at_once=True)


@pytest.fixture
def pool(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 4.0, "gpu": 2.0}, max_run_s="1h")
    return "pool"


def ended(scheduler, task_id):
    """How a task has ended, once it has."""
    until(
        lambda: scheduler.explain(task_id)["state"] in ("completed", "cancelled", "failed", "lost"),
        lambda: f"it runs on: {scheduler.explain(task_id)}",
    )
    return scheduler.explain(task_id)


def test_an_agent_ends_by_its_limit_with_its_state_saved(scheduler, pool):
    answer = scheduler.submit_task_with_preemption(
        "count", pool, Counter, {"cpu": 1.0}, max_run_s=1800.0
    )
    ray.get(answer["agent"]["handle"].add.remote(5))
    refused = scheduler.set_time_limit("count", "2h")
    assert (refused["reason"], "at most 1h" in refused["error"]) == ("exceeds_time_limit", True)
    explained = scheduler.explain("count")
    assert explained["limit_at"] == explained["since"] + 1800.0
    assert scheduler.set_time_limit("count", 0.5)["success"]
    how = ended(scheduler, "count")
    assert (how["state"], how["reason"]) == ("cancelled", "time_limit")
    assert (how["preemptions"], how["failures"]) == (0, 0)
    (saved,) = scheduler.list_saved_states()["saved_states"]
    assert (saved["task_id"], saved["state_saved"]) == ("count", True)


def test_a_job_saves_at_its_limit_and_goes_on_in_its_next_attempt(scheduler, pool, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(RESUMING), encoding="utf-8")
    answer = scheduler.submit_job(
        "train",
        [sys.executable, str(script)],
        pool,
        {"cpu": 1.0},
        checkpoint_dir=tmp_path / "saved",
        max_run_s=4.0,
        on_time_limit="requeue",
        queue=True,
    )
    assert answer["success"], answer
    how = ended(scheduler, "train")
    assert (how["state"], how["preemptions"], how["failures"]) == ("completed", 0, 0)
    (row,) = [job for job in scheduler.jobs()["jobs"] if job["task_id"] == "train"]
    assert row["attempt"] == 2
    kinds = [event["kind"] for event in scheduler.events(task_id="train")["events"]]
    assert "time_limit_reached" in kinds


def test_a_lease_is_noticed_at_its_limit_and_its_groups_are_removed(scheduler, pool):
    noticed = threading.Event()
    lease = scheduler.lease(
        "held",
        pool,
        [[{"cpu": 1.0}]],
        on_preempt=lambda _: noticed.set(),
        grace_s=1.0,
        max_run_s=1.0,
    )
    assert lease.placement_groups
    assert noticed.wait(30), "the holder is not told"
    assert ended(scheduler, "held")["reason"] == "time_limit"
    until(lambda: quota(scheduler, "pool")["free"]["cpu"] == 4.0, "what it held stays held")


def test_idle_gpus_are_warned_of_and_end_their_task_and_used_ones_do_not(scheduler, pool):
    scheduler.ensure_pool(pool, idle_s=2.0)
    handles = {}
    for task_id in ("idle", "busy"):
        answer = scheduler.submit_task_with_preemption(
            task_id, pool, Worker, {"cpu": 1.0, "gpu": 1.0}
        )
        handles[task_id] = answer["agent"]["handle"]
    assert scheduler.explain("idle")["gpus_measured"] is False

    def report():
        ray.get(handles["idle"].report.remote(gpu_utilization=0.0))
        ray.get(handles["busy"].report.remote(gpu_utilization=90.0))
        return scheduler.explain("idle")["idle_ends_at"]

    until(report, "nobody is warned")
    assert scheduler.explain("idle")["gpus_measured"] is True
    how = ended(scheduler, "idle")
    assert (how["state"], how["reason"]) == ("cancelled", "idle_limit")
    assert scheduler.explain("busy")["state"] == "running"
