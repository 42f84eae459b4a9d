"""The calls about the queue, from the client through the whole supervisor on a fake backend."""

from __future__ import annotations

import threading

import pytest

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.errors import InvalidRequestError
from tests.core.test_request_service import client
from tests.runtime.composition import InThread


class Worker(AgentActor):
    """A user's class."""


@pytest.fixture
def service(tmp_path):
    """A supervisor with an empty journal."""
    found = InThread(tmp_path / "j.sqlite")
    yield found
    found.close()


@pytest.fixture
def mesh(service):
    """A client with a pool of one CPU."""
    scheduler = client(service)
    assert scheduler.create_pool("p", resources={"cpu": 1})["success"]
    return scheduler


def submit(mesh, name, **how):
    return mesh.submit_task_with_preemption(name, "p", Worker, {"cpu": 1}, **how)


class Call:
    """A call in a thread of its own."""

    def __init__(self, call):
        self.answer = None
        self.thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self.thread.start()

    def _run(self, call):
        self.answer = call()

    def result(self):
        self.thread.join(20)
        assert not self.thread.is_alive(), "the call was not answered"
        return self.answer


def test_a_queued_task_is_answered_at_once(mesh):
    first = submit(mesh, "a", queue=True, agent_name="first")
    assert first == {
        "success": True,
        "state": "starting",
        "position": 0,
        "task_id": "a",
        "agent_name": "first",
        "pool_name": "p",
    }
    answers = [submit(mesh, name, queue=True) for name in ("b", "c")]
    assert [(answer["state"], answer["position"]) for answer in answers] == [
        ("queued", 1),
        ("queued", 2),
    ]


def test_the_same_request_gets_the_same_answer(mesh):
    submit(mesh, "a")
    first = submit(mesh, "b", queue=True, request_id="once")
    assert submit(mesh, "b", queue=True, request_id="once") == first
    assert submit(mesh, "b", queue=True)["reason"] == "duplicate_task"


def test_a_waiting_call_returns_with_the_agent_when_the_task_runs(mesh):
    submit(mesh, "a")
    waiting = Call(lambda: submit(mesh, "b", wait=True, agent_name="mine", request_id="once"))
    again = Call(lambda: submit(mesh, "b", wait=True, agent_name="mine", request_id="once"))
    assert mesh.complete_task("a", end_agent=True)["success"]
    answer = waiting.result()
    assert (answer["success"], answer["agent"]["name"], answer["task_id"]) == (True, "mine", "b")
    assert again.result()["agent"]["name"] == "mine"


def test_a_waiting_call_ends_with_its_time(mesh):
    submit(mesh, "a")
    answer = submit(mesh, "b", wait=0.1)
    assert (answer["success"], answer["reason"]) == (False, "wait_timeout")
    assert submit(mesh, "b", queue=True)["position"] == 1, "its id is free again"


@pytest.mark.parametrize("wait", [0, -1, "soon", float("nan"), float("inf")])
def test_a_wait_is_seconds(mesh, wait):
    with pytest.raises(InvalidRequestError, match="wait must be seconds above 0"):
        submit(mesh, "b", wait=wait)


def test_references_of_a_waiting_task_are_kept(service, mesh):
    submit(mesh, "a")
    references = service.running.executor.references
    refs = ([object()], [])
    given = mesh._connection.call
    mesh._connection.call = lambda method, data, *_refs, what: given(method, data, refs, what=what)
    submit(mesh, "b", queue=True)
    mesh._connection.call = given
    submit(mesh, "c", queue=True)
    assert len(references) == 1
    submit(mesh, "d", dry_run=True)
    assert len(references) == 1
