"""Why queued tasks wait is asked in turn, and passed on only when it is another reason than before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.runtime.history import wait_reasons as module
from schedulemesh.runtime.history.wait_reasons import WaitReasons

ONE = parse_resources({"cpu": 1})


class Mesh:
    """What is asked of a reactor, with an engine whose pool is full."""

    def __init__(self):
        self.engine = Engine()
        self.listeners = []
        self.observers = SimpleNamespace(add=self.listeners.append)
        self.step(s.PoolRequested(spec=PoolSpec(name="p", resources=ONE)))
        self.submit("runs")

    @property
    def state(self):
        return self.engine.state

    def now(self):
        return 1.0

    async def until_consistent(self):
        return None

    def step(self, stimulus):
        done = self.engine.handle(stimulus, 1.0)
        for listener in self.listeners:
            listener(done)
        return done

    def submit(self, name):
        agent = AgentSpec(name=name, pool_name="p", resources=ONE, class_key="class")
        task = TaskSpec(task_id=name, pool_name="p")
        self.step(s.TaskSubmitted(agent=agent, task=task, queue=True))


@pytest.fixture
def mesh():
    return Mesh()


@pytest.fixture
def noted():
    return []


@pytest.fixture
def look(mesh, noted):
    reasons = WaitReasons(mesh, lambda task_id, reason, _at: noted.append((task_id, reason)))
    return lambda: asyncio.run(reasons.round())


def test_a_reason_is_noted_once(mesh, noted, look):
    mesh.submit("waits")
    look()
    look()
    assert [task_id for task_id, _ in noted] == ["waits"]


def test_another_reason_is_noted_again(mesh, noted, look):
    mesh.submit("waits")
    look()
    mesh.step(s.QueuedTaskChanged(task_id="waits", held=True))
    look()
    mesh.step(s.QueuedTaskChanged(task_id="waits", held=False))
    look()
    first, second, third = (reason for _, reason in noted)
    assert second == Reason.HELD_BY_USER.value
    assert first == third != second


def test_where_nothing_waits_nothing_is_asked(noted, look):
    look()
    assert noted == []


def test_all_come_in_their_turn_where_a_round_has_time_for_one(mesh, noted, look, monkeypatch):
    monkeypatch.setattr(module, "_ROUND_S", 0.0)
    for name in ("u", "v", "w"):
        mesh.submit(name)
    for _ in range(4):
        look()
    assert [task_id for task_id, _ in noted] == ["u", "v", "w"]


def test_a_task_that_has_joined_the_queue_comes_before_those_that_wait_longer(
    mesh, noted, look, monkeypatch
):
    monkeypatch.setattr(module, "_ROUND_S", 0.0)
    for name in ("u", "v", "w"):
        mesh.submit(name)
    for _ in range(3):
        look()
    noted.clear()
    mesh.step(s.QueuedTaskChanged(task_id="u", held=True))
    mesh.submit("last")
    look()
    assert [task_id for task_id, _ in noted] == ["last"]
    look()
    assert noted[1:] == [("u", Reason.HELD_BY_USER.value)]


def test_a_task_that_joins_the_queue_again_has_a_first_reason_again(mesh, noted, look):
    mesh.submit("waits")
    look()
    mesh.step(s.TaskCancellationRequested(task_id="waits"))
    mesh.submit("waits")
    look()
    assert [task_id for task_id, _ in noted] == ["waits", "waits"]
