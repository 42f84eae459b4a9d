"""Owners of a pool on real Ray: their limits and order, and the lead who manages the pool by a token."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest
import ray

from schedulemesh import RayScheduler
from schedulemesh.api.tokens import CreateToken
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.protocol.credentials import Credential, hash_of, new_secret
from schedulemesh.protocol.requests import encode_request
from tests.integration.agents import Plain
from tests.integration.polling import process_exists, until

CPU = {"cpu": 1.0}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The folder of the user's files; no token is in the environment."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SCHEDULEMESH_TOKEN", raising=False)


def submit(scheduler, task_id, owner, resources=None):
    """Submit a task of an owner that may wait; returns whether it runs, waits, or why it was refused."""
    answer = scheduler.submit_task_with_preemption(
        task_id, "team", Plain, resources or CPU, queue=True, owner=owner
    )
    return answer["state"] if answer["success"] else answer["reason"]


def running(scheduler):
    """The ids of the tasks that run."""
    tasks = scheduler.list_tasks()["tasks"]
    return {task["task_id"] for task in tasks if task["phase"] == "running"}


def restart(scheduler):
    """Kill the supervisor's process; Ray starts it again."""
    pid = scheduler.about()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process_exists(pid), "the supervisor still runs")


def issue(scheduler, secret, spec):
    """Create a token as the operator with this secret."""
    request = CreateToken(spec=spec, client="test", request_id=spec.name)
    sent = msgspec.msgpack.encode(Credential(token=secret, pid=os.getpid()))
    ray.get(scheduler.supervisor_handle().ask.remote(encode_request(request), ([], []), sent))


def test_limits_and_order_of_owners_hold_also_after_a_restart(scheduler):
    limits = {"default": {"cpu": 2.0, "queued": 2}, "ben": {"running": 1}}
    scheduler.create_pool("team", resources={"cpu": 3.0}, owner_limits=limits, owner_order="fair")
    for task_id in ("ada-1", "ada-2", "ada-3", "ada-4"):
        submit(scheduler, task_id, "ada")
    assert submit(scheduler, "ada-5", "ada") == "owner_queue_full"
    assert submit(scheduler, "ada-6", "ada", resources={"cpu": 3.0}) == "exceeds_owner_limit"
    assert submit(scheduler, "ben-1", "ben") in ("starting", "running")
    assert submit(scheduler, "ben-2", "ben") == "queued"
    restart(scheduler)
    until(
        lambda: running(scheduler) == {"ada-1", "ada-2", "ben-1"},
        lambda: f"these run: {running(scheduler)}",
    )
    assert "owner 'ada' holds 2 CPU" in scheduler.explain("ada-3")["error"]
    assert scheduler.complete_task("ada-1", end_agent=True)["success"]
    # Ben has one running task already, so ada's next one starts, though ben has used less.
    until(lambda: "ada-3" in running(scheduler), "nobody started")
    assert scheduler.complete_task("ben-1", end_agent=True)["success"]
    until(lambda: "ben-2" in running(scheduler), "ben's next task did not start")
    rows = {row["owner"]: row for row in scheduler.shares()["shares"] if row.get("owner")}
    assert (rows["ada"]["running"], rows["ben"]["running"]) == (2, 1)
    assert scheduler.resize_pool("team", owner_limits={"default": {"cpu": 3.0}})["success"]
    assert scheduler.cancel_task("ben-2")["success"]
    until(lambda: "ada-4" in running(scheduler), "the raised limit helps nobody")


def test_a_lead_manages_its_pool_and_no_other(make_scheduler, namespace):
    secret, of_lead = new_secret(), new_secret()
    operator = make_scheduler(auth="token", token=secret)
    for name in ("team", "other"):
        operator.create_pool(name, resources={"cpu": 2.0})
    spec = TokenSpec(
        name="lead", role=Role.POOL_OPERATOR, secret_hash=hash_of(of_lead), pools=("team",)
    )
    issue(operator, secret, spec)
    lead = RayScheduler.attach("mesh", namespace=namespace, token=of_lead)
    assert submit(lead, "ada-1", "ada") in ("starting", "running")
    assert lead.resize_pool("team", owner_limits={"default": {"cpu": 1.0}})["success"]
    assert submit(lead, "ada-2", "ada") == "queued"
    assert lead.hold_task("ada-2")["success"]
    restart(operator)
    assert lead.complete_task("ada-1", end_agent=True)["success"]
    assert lead.release_task("ada-2")["success"]
    until(lambda: running(operator) == {"ada-2"}, "it does not start")
    elsewhere = operator.submit_task_with_preemption("theirs", "other", Plain, CPU)
    assert elsewhere["success"]
    assert lead.cancel_task("theirs")["reason"] == "not_allowed"
    assert lead.resize_pool("other", owner_order="fair")["reason"] == "not_allowed"
    assert lead.resize_pool("team", resources={"cpu": 8.0})["reason"] == "not_allowed"
    assert running(operator) == {"ada-2", "theirs"}
