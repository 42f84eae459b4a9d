"""Saved states: what a preserver sees, how large they may be, and what is left where a restore fails."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

from schedulemesh.config.settings import JournalSettings
from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from tests.integration.agents import Counter
from tests.integration.drivers import start_driver
from tests.integration.polling import assert_nothing_held, until

ONE = {"cpu": 1.0}


class Reporting(MetricsReportingAgent):
    """Says how far it is."""

    def go(self, step: int) -> None:
        self.report_metrics({"step": step, "progress": step / 10})


def submit(scheduler, task_id, cls=Counter, **more):
    answer = scheduler.submit_task_with_preemption(task_id, "pool", cls, resources=ONE, **more)
    assert answer["success"], answer
    return answer


def test_a_preserver_sees_all_that_is_known_of_its_task_and_outlives_the_supervisor(scheduler):
    def preserver(task):
        fields = ("task_id", "agent_name", "pool_name", "priority", "labels", "payload")
        more = ("estimated_duration", "owner", "started_at", "progress", "last_metrics")
        return {"seen": {name: getattr(task, name) for name in (*fields, *more)}}

    scheduler.create_pool("pool", resources=ONE)
    scheduler.register_state_handlers("pool", preserver=preserver)
    handle = submit(
        scheduler,
        "t",
        Reporting,
        priority=3.0,
        labels={"tier": "x"},
        estimated_duration=60.0,
        owner="ada",
        payload={"data": [1, 2]},
        agent_name="agent",
        actor_kwargs={"supervisor": scheduler.supervisor_handle(), "report_interval": 0.0},
    )["agent"]["handle"]
    started_at = scheduler.list_tasks()["tasks"][0]["started_at"]
    os.kill(scheduler.about()["pid"], signal.SIGKILL)
    ray.get(handle.go.remote(4))
    until(lambda: scheduler.list_tasks()["tasks"][0]["last_metrics"], "no metrics arrive")
    saved = scheduler.execute_preemption("t", "agent")["saved_state"]
    assert saved["seen"] == {
        "task_id": "t",
        "agent_name": "agent",
        "pool_name": "pool",
        "priority": 3.0,
        "labels": {"tier": "x"},
        "payload": {"data": [1, 2]},
        "estimated_duration": 60.0,
        "owner": "ada",
        "started_at": started_at,
        "progress": 0.4,
        "last_metrics": {"step": 4, "progress": 0.4},
    }


def test_the_owner_is_kept_through_eviction_death_of_the_supervisor_and_restore(scheduler):
    def owners(rows):
        return {row["task_id"]: row["owner"] for row in rows}

    scheduler.create_pool("pool", resources=ONE)
    submit(scheduler, "low", priority=1.0, owner="ada")
    assert owners(submit(scheduler, "high", priority=9.0)["preempted"]) == {"low": "ada"}
    os.kill(scheduler.about()["pid"], signal.SIGKILL)
    assert owners(scheduler.list_tasks()["tasks"]) == {"high": getpass.getuser()}
    assert owners(scheduler.list_saved_states()["saved_states"]) == {"low": "ada"}
    assert owners(scheduler.get_preemption_stats()["recent_preemptions"]) == {"low": "ada"}
    saved = scheduler.get_saved_state("low")["saved_state"]
    scheduler.complete_task("high", end_agent=True)
    assert scheduler.restore_task(saved)["success"]
    (agent,) = scheduler.list_agents()["agents"]
    assert (
        owners(agent["task_details"]) == owners(scheduler.list_tasks()["tasks"]) == {"low": "ada"}
    )


def test_a_state_that_is_too_large_is_refused_and_the_one_before_kept(make_scheduler):
    class Growing(Counter):
        def save_state(self):
            return {"count": self.count, "filler": b"x" * (10 * self.count)}

    scheduler = make_scheduler(journal=JournalSettings(saved_state_bytes=5000))
    scheduler.create_pool("pool", resources=ONE)
    handle = submit(scheduler, "t", Growing)["agent"]["handle"]
    ray.get(handle.add.remote(1))
    assert scheduler.save_task_state("t")["success"]
    ray.get(handle.add.remote(999))
    refused = scheduler.save_task_state("t")
    assert (refused["success"], refused["reason"]) == (False, "state_too_large")
    assert ray.get(handle.add.remote(0)) == 1000, "it goes on"
    assert scheduler.preempt_task("t")["success"]
    saved = scheduler.get_saved_state("t")["saved_state"]
    assert saved["state"]["count"] == 1
    answer = scheduler.restore_task(saved)
    assert ray.get(answer["agent"]["handle"].add.remote(0)) == 1


class Huge(Counter):
    """Its state has as many bytes as it counts."""

    def save_state(self):
        return {"count": self.count, "filler": bytes(self.count)}


def resident_mb(pid):
    """The most memory that a process has held, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_a_large_state_is_kept_and_a_huge_one_never_reaches_the_supervisor(make_scheduler):
    scheduler = make_scheduler(journal=JournalSettings(saved_state_bytes=20_000_000))
    scheduler.create_pool("pool", resources=ONE)
    supervisor = scheduler.about()["pid"]
    handle = submit(scheduler, "t", Huge)["agent"]["handle"]
    ray.get(handle.add.remote(19_000_000))
    saved = scheduler.save_task_state("t")
    assert saved["success"], saved
    assert len(saved["saved_state"]["state"]["filler"]) == 19_000_000
    before = resident_mb(supervisor)
    ray.get(handle.add.remote(300_000_000))
    answer = submit(scheduler, "u", Counter, priority=9.0)
    (victim,) = answer["preempted"]
    assert victim["state_saved"] is True, "the checkpoint of this attempt"
    assert "saved_state_bytes" in victim["save_error"]
    assert resident_mb(supervisor) < before + 100
    (record,) = scheduler.get_preemption_stats()["recent_preemptions"]
    assert (record["state_saved"], record["save_error"]) == (True, victim["save_error"])
    assert 0 < record["lost_work"] <= record["decided_at"] - record["saved_at"]
    kept = scheduler.get_saved_state("t")["saved_state"]
    assert kept["state"]["count"] == 19_000_000, "the state that was saved before"
    scheduler.complete_task("u", end_agent=True)
    again = scheduler.restore_task(kept)
    assert ray.get(again["agent"]["handle"].add.remote(0)) == 19_000_000


def test_a_task_whose_class_has_no_cancel_keeps_running(scheduler, tmp_path):
    class Deaf(Counter):
        def spin(self, mark, stop):
            Path(mark).touch()
            while not Path(stop).exists():
                time.sleep(0.01)  # a method that ends when the test says so

    scheduler.create_pool("pool", resources=ONE)
    agent = submit(scheduler, "t", Deaf)["agent"]
    spinning = agent["handle"].spin.remote(str(tmp_path / "mark"), str(tmp_path / "stop"))
    until((tmp_path / "mark").exists, "it does not spin")
    answer = scheduler.execute_preemption("t", agent["name"])
    assert answer["cancel_success"] is False
    assert (
        "no cancel(), so nothing was cancelled; 1 of the agent's methods runs on" in answer["error"]
    )
    assert answer["state_saved"]
    (tmp_path / "stop").touch()
    ray.get(spinning)


def test_a_save_that_fails_is_refused_and_the_state_before_kept(scheduler):
    class Failing(Counter):
        def save_state(self):
            if self.count > 1:
                raise ValueError("too many to be saved")
            return super().save_state()

    scheduler.create_pool("pool", resources=ONE)
    handle = submit(scheduler, "t", Failing)["agent"]["handle"]
    ray.get(handle.add.remote(1))
    assert scheduler.save_task_state("t")["success"]
    ray.get(handle.add.remote(1))
    refused = scheduler.save_task_state("t")
    assert (refused["success"], refused["reason"]) == (False, "save_failed")
    assert "too many to be saved" in refused["error"]
    assert scheduler.get_saved_state("t")["saved_state"]["state"] == {"count": 1}
    assert ray.get(handle.add.remote(0)) == 2, "it goes on"
    # an eviction cannot wait for a better day: it keeps what there is, and says so
    saved = scheduler.preempt_task("t")["preempted"][0]["saved_state"]
    assert saved["state"] == {"count": 1}
    assert "too many to be saved" in saved["warning"]


def test_a_restorer_that_hangs_leaves_the_state_as_it_was(scheduler):
    def restorer(saved):
        import threading

        threading.Event().wait()

    scheduler.create_pool("pool", resources=ONE)
    submit(scheduler, "t")
    saved = scheduler.preempt_task("t")["preempted"][0]["saved_state"]
    scheduler.register_state_handlers("pool", restorer=restorer)
    scheduler.update_preemption_policy(save_timeout=1.0)
    refused = scheduler.restore_task(saved)
    assert (refused["success"], refused["reason"]) == (False, "restore_failed")
    assert "not done after 1 s" in refused["error"]
    assert scheduler.list_agents()["agents"] == scheduler.list_tasks()["tasks"] == []
    assert scheduler.get_saved_state("t")["saved_state"] == saved
    scheduler.register_state_handlers("pool")
    # The agent's own restore is not what is limited here.
    scheduler.update_preemption_policy(save_timeout=60.0)
    assert scheduler.restore_task(saved)["state_restored"]


JOB = """
import shutil
ray.shutdown()
ray.init(runtime_env={{"working_dir": "job"}}, log_to_driver=False, logging_level="ERROR")
sys.path.insert(0, "job")
from of_the_job import Worker
mesh = RayScheduler.attach("mesh", namespace={namespace!r})
answer = mesh.submit_task_with_preemption("t", "pool", Worker, resources={{"cpu": 1.0}})
assert answer["success"], answer
handle = answer["agent"]["handle"]
print(ray.get(handle.add.remote(5)), ray.get(handle.read.remote()), flush=True)
mesh.detach()
"""

MODULE = """
from pathlib import Path

class Worker:
    def __init__(self, name, labels):
        self.count = 0
    def add(self, n=1):
        self.count += n
        return self.count
    def read(self):
        return Path("data.txt").read_text()
    def save_state(self):
        return {"count": self.count}
    def restore_state(self, saved):
        self.count = saved["count"]
"""


@pytest.mark.parametrize("collected", [False, True])
def test_a_victim_of_an_ended_job_restarts_or_says_why_not(
    make_scheduler, namespace, tmp_path, collected
):
    scheduler = make_scheduler()
    scheduler.create_pool("pool", resources=ONE)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "of_the_job.py").write_text(MODULE)
    (tmp_path / "job" / "data.txt").write_text("of-the-job")
    with start_driver(JOB.format(namespace=namespace), tmp_path) as driver:
        out, err = driver.communicate(timeout=90)
    assert out.strip() == "5 of-the-job", err
    shutil.rmtree(tmp_path / "job")
    (agent,) = scheduler.list_agents()["agents"]
    uri = agent["ray_options"]["runtime_env"]["working_dir"]
    saved = scheduler.preempt_task("t")["preempted"][0]["saved_state"]
    assert saved["state"] == {"count": 5}
    if collected:
        collect(uri)
    answer = scheduler.restore_task(saved)
    if not collected:
        assert answer["state_restored"], answer
        handle = answer["agent"]["handle"]
        assert ray.get([handle.add.remote(0), handle.read.remote()]) == [5, "of-the-job"]
        return
    assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
    assert "runtime" in answer["error"]
    assert_nothing_held(scheduler)
    assert scheduler.get_saved_state("t")["saved_state"]["state"] == {"count": 5}


def collect(uri):
    """What Ray does with a package that no living job or actor refers to: here at once."""
    assert _internal_kv_get(uri)
    _internal_kv_del(uri)
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    name = uri.removeprefix("gcs://").removesuffix(".zip")
    found = list(session.glob(f"runtime_resources/**/{name}*"))
    assert found, uri
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True) if path.is_file() else None
