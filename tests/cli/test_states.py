"""The commands states, save, restore, evaluate, leases and groups."""

from __future__ import annotations

import json

import pytest

from schedulemesh.cli.exits import ExitCode
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import Accepted
from schedulemesh.protocol.submissions import Submitter, lease_request
from schedulemesh.runtime.backend import NodeView
from tests.server.work import ask

pytestmark = pytest.mark.usefixtures("cancels_at_once")


@pytest.fixture
def filled(scheduler):
    scheduler.pool("train", cpu=2)
    scheduler.submit("one", "train", priority=1.0)
    return scheduler


def test_a_state_is_saved_listed_and_restored(filled, run):
    done = run("save", "one")
    assert done.exit_code == 0, done.stderr
    assert "state saved, " in done.stdout
    (row,) = json.loads(run("states", "-o", "json").stdout)
    assert (row["task_id"], row["status"], row["state_saved"]) == ("one", "running", True)
    assert run("preempt", "one").exit_code == 0
    assert json.loads(run("states", "-o", "json").stdout)[0]["status"] == "preempted"
    restored = run("restore", "one")
    assert restored.exit_code == 0, restored.stderr
    assert "runs again" in restored.stdout
    assert run("tasks", "-f", "task=one", "-o", "name").stdout == "one\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("save nope", ExitCode.NOT_FOUND, "task 'nope' is not running"),
        ("save waits", ExitCode.CONFLICT, "it is queued), so there is no state to save"),
        ("save done", ExitCode.CONFLICT, "it is cancelled), so there is no state to save"),
        ("restore nope", ExitCode.NOT_FOUND, "no saved state of task 'nope'"),
        ("restore one", ExitCode.CONFLICT, "one"),
        ("states -f status=gone", ExitCode.USAGE, "it may be running, preempted, lost"),
        ("evaluate --pool nope", ExitCode.NOT_FOUND, "there is no pool 'nope'"),
        ("evaluate --pool train --priority hihg", ExitCode.USAGE, "did you mean 'high'"),
        ("evaluate --pool train --memory lots", ExitCode.USAGE, "allowed is a size"),
        ("evaluate --pool train --label x", ExitCode.USAGE, "a label is LABEL=VALUE"),
        ("groups --pool nope", ExitCode.NOT_FOUND, "there is no pool 'nope'"),
        ("groups -f phase=nope", ExitCode.USAGE, "phase is 'nope'"),
        ("leases get one", ExitCode.NOT_FOUND, "one"),
        ("leases release nope", ExitCode.NOT_FOUND, "nope"),
        ("leases renew nope", ExitCode.NOT_FOUND, "nope"),
        ("leases -f state=held", ExitCode.USAGE, "it may be queued"),
    ],
)
def test_what_there_is_not_is_refused(words, code, message, filled, run):
    if words == "restore one":
        run("save", "one")
    if words in ("save waits", "save done"):
        filled.submit("waits", "train", cpu=2, queue=True, priority=0.0)
        filled.submit("done", "train", cpu=2, queue=True, priority=0.0)
        filled.calls.cancel_task("done")
    done = run(*words.split())
    assert (done.exit_code, message in done.stderr) == (code, True), (done.exit_code, done.stderr)


def test_who_may_be_evicted_is_said_and_nobody_is(filled, run):
    table = run("evaluate", "--pool", "train", "--priority", "9", "--cpus", "2")
    assert table.exit_code == 0, table.stderr
    assert "same_pool_preemption" in table.stdout
    answer = json.loads(run("evaluate", "--pool", "train", "--priority", "-3", "-o", "json").stdout)
    assert (answer["should_preempt"], answer["candidates"]) == (False, [])
    assert answer["reason"]
    assert run("tasks", "-o", "name").stdout == "one\n"


def test_leases_and_groups_are_listed(filled, run):
    service = filled.connection.service
    room = parse_resources({"cpu": 8})
    service.backend.free = [NodeView(node_id="n1", total=room, free=room, labels={})]
    service.do(service.running.monitor.observe())
    lease = {"task_id": "leased", "pool": "train", "groups": [[{"cpu": 1}]], "ttl_s": 60.0}
    request = lease_request(lease, Submitter(client="c", owner="ann"), "")
    assert isinstance(ask(service, request).outcome, Accepted)
    (row,) = json.loads(run("leases", "-o", "json").stdout)
    assert (row["task_id"], row["pool_name"]) == ("leased", "train")
    assert run("leases", "get", "leased").exit_code == 0
    (group,) = json.loads(run("groups", "-o", "json").stdout)
    assert (group["pool_name"], group["reserved"]) == ("train", False)
    assert run("leases", "renew", "leased").exit_code == 0
    assert "released" in run("leases", "release", "leased").stdout
    assert run("leases", "-o", "name").stdout == ""
