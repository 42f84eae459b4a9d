"""Commands inside jobs over HTTP: started with one request, read with others."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import EnsurePool
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView
from tests.runtime.exec_runner import ExecRunner
from tests.runtime.test_exec_sessions import closed
from tests.server.work import ask

JOB = {"task_id": "j", "entrypoint": ["true"], "pool_name": "p", "resources": {"cpu": 1}}


@pytest.fixture
def job(mesh, api, monkeypatch):
    """The path for commands in a job that runs."""
    size = parse_resources({"cpu": 2})
    mesh.backend.free = [NodeView(node_id="node-1", total=size, free=size, labels={})]
    mesh.do(mesh.running.monitor.observe())
    monkeypatch.setattr(mesh.backend, "run_task", lambda *_: asyncio.Event().wait())
    ask(mesh, ChangePolicy(changes={"allow_exec": True}, client="test"))
    ask(mesh, EnsurePool(name="p", resources=size))
    assert api.send("POST", "/jobs", JOB)["success"]
    runner = ExecRunner(mesh, "j")
    yield "/tasks/j/exec"
    runner.close()
    mesh.do(closed(mesh.backend.cleaners))


def test_a_command_is_started_and_read_to_its_end(api, job):
    script = "echo 输出; echo err >&2; exit 4"
    begun = api.send("POST", job, {"command": ["sh", "-c", script]})
    assert begun | {"session_id": ""} == {
        "success": True,
        "session_id": "",
        "node_id": "node-1",
        "attempt": 1,
    }
    written, after = {"stdout": "", "stderr": ""}, 0
    while True:
        part = api.get(f"{job}?session={begun['session_id']}&after={after}&wait=10")
        for piece in part["pieces"]:
            written[piece["stream"]] += piece["text"]
        after = part["next"]
        if part["ended"] and not part["pieces"]:
            break
    assert written == {"stdout": "输出\n", "stderr": "err\n"}
    assert (part["exit_code"], part["error"]) == (4, "")
    assert api.get(f"{job}?session={begun['session_id']}", 404)["reason"] == "task_not_found"


def test_what_cannot_be_done_says_why(mesh, api, job):
    assert "at least one word" in api.send("POST", job, {"command": []}, 400)["error"]
    assert "session" in api.get(job, 400)["error"]
    refused = api.send("POST", "/tasks/none/exec", {"command": ["true"]}, 404)
    assert refused["reason"] == "task_not_found"
    refused = api.send("POST", job, {"command": ["true"], "rank": 1}, 409)
    assert refused["reason"] == "task_not_running"
    ask(mesh, ChangePolicy(changes={"allow_exec": False}, client="test"))
    refused = api.send("POST", job, {"command": ["true"]}, 403)
    assert refused["reason"] == "commands_off"
    assert 'PATCH /api/v1/policy with {"allow_exec": true}' in refused["error"]
