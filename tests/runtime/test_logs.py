"""What agents have written, as a whole supervisor on a fake backend reads it."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.process_logs import link_log_files
from schedulemesh.domain.agent import Death
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError, TaskFailedError
from schedulemesh.protocol.agents import AgentInit
from schedulemesh.runtime.backend import NodeView
from tests.runtime.composition import InThread
from tests.runtime.test_jobs import calls_with_a_pool


@pytest.fixture
def service(tmp_path):
    found = InThread(tmp_path / "j.sqlite", state_path=str(tmp_path / "state"))
    total = parse_resources({"cpu": 8})
    nodes = ("own", "other")
    found.backend.free = [NodeView(node_id=n, total=total, free=total, labels={}) for n in nodes]
    found.do(found.running.monitor.observe())
    yield found
    found.close()


@pytest.fixture
def calls(service):
    return calls_with_a_pool(service)


@pytest.fixture
def write(tmp_path, service):
    """Writes as the process of the newest agent, in its own process of Ray; returns the file."""
    logs = tmp_path / "state" / "logs"
    logs.mkdir(parents=True)
    numbers = itertools.count()

    def written(text, stream="stdout", of=-1):
        init = msgspec.msgpack.decode(service.backend.actors[of].request.init, type=AgentInit)
        path = logs / f"worker-{next(numbers)}"
        path.touch()
        link_log_files(init, {stream: path})
        path.write_text(text)
        return path

    return written


def submit(calls, task_id="t", **fields):
    answer = calls.submit_task_with_preemption(task_id, "p", AgentActor, {"cpu": 2}, **fields)
    assert answer["success"], answer


def read(calls, task_id="t", **which):
    return "".join(calls.task_logs(task_id, **which))


def test_a_task_that_runs_and_one_that_has_ended_have_their_logs(calls, write):
    submit(calls)
    assert read(calls) == ""
    write("hello\n你好\n")
    write("warning\n", stream="stderr")
    for _ in range(2):
        assert read(calls) == read(calls, stream="stdout") == "hello\n你好\n"
        assert read(calls, stream="stderr") == "warning\n"
        assert read(calls, tail=1) == "你好\n"
        calls.cancel_task("t")
        calls.wait("t")


@pytest.mark.parametrize("queued", [False, True])
def test_the_log_of_an_agent_says_why_its_environment_failed(calls, service, queued):
    how = "was not started: its runtime environment could not be set up: ERROR: No x"

    def fails(actor):
        actor.alive = False
        detail = "Collecting x\nERROR: No x\n"
        service.backend.deaths[actor.request.name] = Death(how=how, detail=detail)

    if queued:
        submit(calls, "first")
        calls.ensure_pool("p", resources={"cpu": 2})
    service.backend.start = fails
    answer = calls.submit_task_with_preemption(
        "t", "p", AgentActor, {"cpu": 2}, agent_name="t", queue=queued, max_retries=1
    )
    assert answer["success"] is queued
    if queued:
        calls.cancel_task("first")
    assert calls.wait("t", timeout=30)["pending"] == []
    line = f"[schedulemesh] agent 't': its process {how}\n"
    assert read(calls, stream="stderr") == f"{line}[schedulemesh] Collecting x\nERROR: No x\n"
    for attempt in (1, 2) if queued else (1,):
        assert read(calls, stream="stderr", attempt=attempt) == read(calls, stream="stderr")
        assert read(calls, stream="stdout", attempt=attempt) == ""
    with pytest.raises(TaskFailedError, match="no log of attempt 3"):
        read(calls, stream="stderr", attempt=3)


def test_each_attempt_has_its_own_log(calls, service, write):
    submit(calls, on_preempted="requeue", estimated_duration=100.0)
    write("first\n")
    assert calls.preempt_task("t")["success"]
    while len(service.backend.actors) < 2:
        service.do(asyncio.sleep(0))
    write("second\n")
    assert read(calls) == "second\n"
    assert read(calls, attempt=1) == "first\n"
    with pytest.raises(TaskFailedError, match="no log of attempt 7 on any node"):
        read(calls, attempt=7)


def test_a_log_that_ray_has_removed_is_said_to_be(calls, write):
    submit(calls)
    write("hello\n").unlink()
    with pytest.raises(TaskFailedError, match="Ray has removed what attempt 1 of task 't'"):
        read(calls)


def test_a_task_on_an_agent_that_was_started_without_one_has_that_log(calls, write):
    assert calls.create_agent("helper", "p", AgentActor, {"cpu": 1})["success"]
    assert calls.register_running_task("work", "helper", "p")["success"]
    write("hello\n")
    assert read(calls, "work") == "hello\n"


def test_a_registered_name_does_not_open_the_log_of_a_former_agent(calls, write):
    submit(calls, "secret", agent_name="a")
    write("secret\n")
    calls.cancel_task("secret")
    calls.wait("secret")
    assert calls.register_running_task("mine", "a", "p")["success"]
    with pytest.raises(TaskFailedError, match="actor that the scheduler has not started"):
        read(calls, "mine")
    assert calls.complete_task("mine")["success"]
    assert read(calls, "mine") == ""


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ({"stream": "stdin"}, "allowed are stdout, stderr"),
        ({"rank": -1}, "rank"),
        ({"attempt": 0}, "attempt"),
        ({"tail": -1}, "tail"),
    ],
)
def test_what_cannot_be_asked_for_is_said_before_anybody_is_asked(calls, which, said):
    with pytest.raises(InvalidRequestError, match=said):
        read(calls, "nobody", **which)


def test_what_a_task_has_no_log_of_is_refused(calls):
    submit(calls)
    assert calls.submit_job("job", ["true"], "p", {"cpu": 1})["success"]
    for task_id, which, said in (
        ("t", {"rank": 1}, "no gang"),
        ("job", {"stream": "stderr"}, "leave stream out"),
        ("nobody", {}, "not known"),
    ):
        with pytest.raises(TaskFailedError, match=said):
            read(calls, task_id, **which)
