"""A frozen supervisor is told within the deadline, and serves again when it goes on; standing schedulers."""

from __future__ import annotations

import logging
import os
import signal
import time

import pytest

import schedulemesh
from schedulemesh.core import RayScheduler
from schedulemesh.core.client import deadline
from schedulemesh.errors import (
    InvalidRequestError,
    SchedulerExistsError,
    SchedulerUnavailableError,
)
from tests.integration.agents import Plain
from tests.integration.drivers import run_driver
from tests.integration.polling import supervisor_of
from tests.integration.test_supervisor_startup import command, supervisor_pid


@pytest.fixture
def frozen(make_scheduler, monkeypatch):
    """A scheduler whose supervisor is stopped, and callers that wait two seconds."""
    scheduler = make_scheduler(detached=True)
    scheduler.create_pool("pool", resources={"cpu": 1.0})
    pid = supervisor_pid(scheduler)
    monkeypatch.setattr(deadline, "LOOK_S", 0.5)
    monkeypatch.setattr(deadline, "SILENCE_S", 1.5)
    os.kill(pid, signal.SIGSTOP)
    yield scheduler
    monkeypatch.undo()
    os.kill(pid, signal.SIGCONT)


def test_every_call_to_a_stopped_supervisor_names_itself_in_the_error(frozen, namespace):
    calls = {
        "list_pools": frozen.list_pools,
        "submit_task": lambda: frozen.submit_task_with_preemption("t", "pool", Plain),
        "hello": lambda: RayScheduler.attach("mesh", namespace=namespace),
        "shutdown": frozen.shutdown,
    }
    for method, call in calls.items():
        began = time.monotonic()
        with pytest.raises(SchedulerUnavailableError, match=f"'mesh' shows no sign .*'{method}'"):
            call()
        assert time.monotonic() - began < 25.0  # otherwise it waits for 30


@pytest.fixture
def other(make_scheduler):
    """A scheduler with a running and a waiting task, made while callers have patience."""
    scheduler = make_scheduler("other:one")
    scheduler.create_pool("p", resources={"cpu": 1})
    for task_id in ("runs", "waits"):
        answer = scheduler.submit_task_with_preemption(
            task_id, "p", Plain, {"cpu": 1}, queue=True, wait=task_id == "runs"
        )
        assert answer["success"], answer
    return scheduler


def test_a_list_says_which_scheduler_does_not_answer_and_what_the_others_have(
    other, frozen, namespace, monkeypatch
):
    # The other one is to answer in this time, too, however busy the machine is.
    monkeypatch.setattr(deadline, "SILENCE_S", 15.0)
    found = RayScheduler.list()["schedulers"]
    stopped, serving = [one for one in found if one["namespace"] == namespace]

    assert (stopped["name"], stopped["answers"], stopped["node_id"]) == ("mesh", False, None)
    assert "shows no sign of life" in stopped["error"]
    about = other.about()
    assert serving == {
        "name": "other:one",
        "namespace": namespace,
        "answers": True,
        "error": "",
        "detached": False,
        "started_at": about["started_at"],
        "version": schedulemesh.__version__,
        "node_id": about["node_id"],
        "running_tasks": 1,
        "queued_tasks": 1,
    }
    assert 0 <= about["time"] - about["started_at"] < 600


def test_a_process_without_ray_lists_schedulers_by_an_address_and_is_as_before(
    make_scheduler, namespace, tmp_path
):
    make_scheduler()
    printed = run_driver(
        """
        address = ray.get_runtime_context().gcs_address
        ray.shutdown()
        print(RayScheduler.list(address)["schedulers"], ray.is_initialized())
        """,
        tmp_path,
    )
    assert f"'namespace': {namespace!r}" in printed
    assert printed.endswith("False\n")
    with pytest.raises(InvalidRequestError, match=r"cannot list the schedulers at 127\.0\.0\.1:1"):
        RayScheduler.list("127.0.0.1:1")


def test_a_request_that_timed_out_is_repeated_safely(frozen, namespace, monkeypatch):
    def submit():
        return frozen.submit_task_with_preemption("t", "pool", Plain, request_id="r1")

    with pytest.raises(SchedulerUnavailableError):
        submit()
    os.kill(supervisor_of(namespace), signal.SIGCONT)
    monkeypatch.undo()
    assert submit()["success"]
    assert [task["task_id"] for task in frozen.list_tasks()["tasks"]] == ["t"]


def test_a_client_without_detached_warns_that_it_found_a_detached_scheduler(
    make_scheduler, namespace, caplog
):
    standing = make_scheduler(detached=True)
    with caplog.at_level(logging.WARNING):
        found = RayScheduler("mesh", namespace=namespace)
    assert "'mesh' is a standing one" in caplog.text
    refused = found.shutdown()
    assert (refused["success"], refused["reason"]) == (False, "standing_scheduler")
    assert standing.list_pools()["success"]
    assert found.shutdown(force=True) == {"success": True}
    with pytest.raises(SchedulerUnavailableError, match="'mesh' has ended: it was shut down"):
        standing.list_pools()


def test_arguments_that_contradict_the_running_scheduler_are_reported(
    make_scheduler, namespace, tmp_path
):
    make_scheduler(detached=True, state_path=tmp_path / "a", node_strategy="spread")
    again = {"namespace": namespace, "detached": True}
    RayScheduler("mesh", **again, state_path=tmp_path / "a", node_strategy="spread")
    with pytest.raises(SchedulerExistsError, match=r"/a', but .*/b' was given"):
        RayScheduler("mesh", **again, state_path=tmp_path / "b")
    with pytest.raises(SchedulerExistsError, match="'spread', but 'best_fit' was given"):
        RayScheduler("mesh", **again, node_strategy="best_fit")
    with pytest.raises(SchedulerExistsError, match=r"/a', but .*/c' was given"):
        RayScheduler.attach("mesh", namespace=namespace, state_path=tmp_path / "c")


def test_status_without_a_scheduler_is_one_sentence(namespace):
    told = command("status", namespace)
    assert told.returncode == 3
    assert told.stdout == ""
    (sentence,) = told.stderr.splitlines()
    assert "no scheduler 'mesh' lives" in sentence
    assert f"`schedulemesh start --name mesh --namespace {namespace}`" in sentence
