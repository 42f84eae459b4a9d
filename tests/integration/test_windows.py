"""An amount that the command line reserves on real Ray: who leaves, who may start, what a restart keeps."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import datetime, timezone

import pytest

from tests.command_runner import run_command
from tests.integration.agents import Counter
from tests.integration.polling import process_exists, until


@pytest.fixture
def run(scheduler, monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path))
    monkeypatch.setenv("SCHEDULEMESH_NAME", "mesh")
    monkeypatch.setenv("SCHEDULEMESH_NAMESPACE", scheduler.about()["namespace"])

    def printed(*words):
        done = run_command([*words, "-o", "json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return printed


def states(scheduler):
    """The phase of each task."""
    return {task["task_id"]: task["phase"] for task in scheduler.list_tasks()["tasks"]}


def test_an_amount_that_is_reserved_by_command_is_free_for_its_pool_alone(scheduler, run):
    scheduler.create_pool("course", resources={"cpu": 2.0, "gpu": 2.0})
    scheduler.create_pool("others", resources={"cpu": 4.0})
    scheduler.update_preemption_policy(preemption_grace_s=0.0)
    how = {"queue": True, "on_preempted": "requeue"}
    scheduler.submit_task_with_preemption("theirs", "others", Counter, {"cpu": 1.0}, **how)
    until(lambda: states(scheduler)["theirs"] == "running", "it does not start")

    now = datetime.fromtimestamp(time.time() - 1.0, timezone.utc).isoformat(timespec="seconds")
    reserved = ("--gpus", "2", "--for-pool", "course", "--comment", "GPUs for the course")
    run("windows", "create", "w", "--start", now, "--duration", "1h", *reserved)
    (window,) = run("windows")
    (node,) = run("nodes")
    assert (window["resources"], window["node_ids"], window["open"]) == (
        {"gpu": 2.0},
        [node["node_id"]],
        True,
    )
    until(
        lambda: states(scheduler)["theirs"] == "queued",
        lambda: f"it stays on the reserved node: {states(scheduler)}",
    )
    until(
        lambda: scheduler.explain("theirs")["reason"] == "node_reserved",
        lambda: f"explain says: {scheduler.explain('theirs')}",
    )
    scheduler.submit_task_with_preemption("ours", "course", Counter, {"cpu": 1, "gpu": 1}, **how)
    until(lambda: states(scheduler)["ours"] == "running", lambda: f"{states(scheduler)}")

    pid = scheduler.about()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process_exists(pid), "the supervisor still runs")
    # Ray prints that the process was killed into whatever is printed from now on.
    (again,) = scheduler.list_windows()["windows"]
    assert again["node_ids"] == window["node_ids"]
    assert states(scheduler) == {"theirs": "queued", "ours": "running"}

    assert scheduler.delete_window("w")["success"]
    until(lambda: states(scheduler)["theirs"] == "running", "it does not start after the window")
