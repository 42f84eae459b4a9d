"""The command logs: which streams it prints where, what it searches, and what it says where there is none."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.core.agent.process_logs import link_log_files
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol.agents import AgentInit
from schedulemesh.runtime.backend import NodeView


@pytest.fixture
def agent(scheduler, tmp_path):
    """An agent that has written to both streams."""
    service = scheduler.connection.service
    total = parse_resources({"cpu": 8})
    service.backend.free = [NodeView(node_id="own", total=total, free=total, labels={})]
    service.do(service.running.monitor.observe())
    scheduler.pool()
    scheduler.submit("训练")
    init = msgspec.msgpack.decode(service.backend.actors[0].request.init, type=AgentInit)
    service.running.executor.job_folder = str(tmp_path)
    logs = tmp_path / "logs"
    logs.mkdir()
    files = {"stdout": b"step 1\nStep 2\n", "stderr": b"a warning\n"}
    for stream, data in files.items():
        path = logs / f"worker-{stream}"
        path.touch()
        link_log_files(init, {stream: path})
        path.write_bytes(data)


def test_each_stream_is_printed_where_it_belongs(agent, run):
    done = run("logs", "训练")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "step 1\nStep 2\n", "a warning\n")
    done = run("logs", "训练", "--stream", "stderr", "--attempt", "1")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "a warning\n", "")
    assert run("logs", "训练", "--tail", "1").stdout == "Step 2\n"


def test_a_search_looks_in_both_streams(agent, run):
    done = run("logs", "训练", "--search", "STEP 2")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Step 2\n", "")
    done = run("logs", "训练", "--search", "warn")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "a warning\n")
    assert run("logs", "训练", "--search", "error").exit_code == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--stream", "err"), 2, "did you mean 'stderr'?"),
        (("--stream", "both"), 2, "allowed are stdout, stderr"),
        (("--rank", "1"), 3, "no gang"),
        (("--attempt", "2"), 3, "no log of attempt 2"),
        (("--search", ""), 2, "--search is empty"),
    ],
)
def test_what_there_is_no_log_of_is_said(agent, run, words, code, said):
    done = run("logs", "训练", *words)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def test_a_log_that_is_followed_ends_with_its_task(agent, scheduler, run):
    scheduler.calls.cancel_task("训练")
    scheduler.calls.wait("训练")
    done = run("logs", "训练", "--follow")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "step 1\nStep 2\n", "a warning\n")


def test_of_a_task_that_waits_it_is_said_that_it_has_not_started(scheduler, run):
    scheduler.pool()
    scheduler.submit("runs", cpu=4)
    scheduler.submit("waits", cpu=4, queue=True)
    done = run("logs", "waits")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "task 'waits' has not started: it is queued\n"
