"""What the cluster monitor cannot find out, or cannot do, keeps nothing else from being done."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.nodes import CordonNode
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import ClockTicked, TaskSubmitted
from schedulemesh.metrics import catalogue as c
from schedulemesh.runtime.backend import BackendError, NodeView
from schedulemesh.runtime.cluster import monitor
from tests.runtime import life as lives
from tests.runtime.fake_backend import FakeBackend
from tests.runtime.life import NODE, SOON_S


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


def failing(error):
    async def fail(*_args):
        raise error

    return fail


def value(life, metric, label):
    for shown, samples in life.running.loops.families():
        if shown is metric:
            return {sample.labels[0]: sample.value for sample in samples}[label]
    raise AssertionError(metric)


@pytest.mark.parametrize("error", [BackendError("Ray does not answer"), KeyError("a table")])
@pytest.mark.parametrize("look", ["nodes", "groups", "usage", "demand", "recall", "keep"])
def test_a_look_that_fails_does_not_blind_the_others(lived, monkeypatch, look, error):
    async def story(life):
        await life.submit("a", cpu=1)
        await life.submit("b", cpu=1, pool="g")
        await asyncio.sleep(SOON_S)  # virtual time
        monkeypatch.setattr(FakeBackend, look, failing(error))
        life.backend.actors[0].alive = False
        ticks = []
        life.running.reactor.subscribe(lambda step: ticks.append(type(step.stimulus).__name__))
        await asyncio.sleep(SOON_S)  # virtual time
        assert "a" not in life.running.reactor.state.agents
        assert ticks.count("ClockTicked") >= 4
        monkeypatch.undo()

    lived(story)


def waiting(number):
    """A task that asks for more than is free, and for something else than others."""
    agent = AgentSpec(name=f"w{number}", pool_name="p", resources=NODE, class_key="class")
    task = TaskSpec(task_id=f"w{number}", pool_name="p", priority=number / 10)
    return TaskSubmitted(agent=agent, task=task, queue=True, choose_node=True)


def test_requests_are_served_between_the_portions_of_a_tick(lived, monkeypatch):
    monkeypatch.setattr(monitor, "_PORTION", 1)

    async def story(life):
        reactor, steps = life.running.reactor, []
        await life.submit("a", cpu=4, gpu=2)
        await reactor.steps([waiting(number) for number in range(8)], {})
        reactor.subscribe(lambda step: steps.append(type(step.stimulus).__name__))
        asked = life.ask(CordonNode(node_id="n", cordoned=True))
        await life.running.monitor._tick()
        assert asked.done()
        begun, asked_for = steps.index("ClockTicked"), steps.index("CordonRequested")
        assert begun < asked_for < len(steps) - 1 - steps[::-1].index("TickContinued")
        assert reactor.state.cluster.nodes["n"].cordoned

    lived(story)


def test_a_tick_is_one_step_where_little_waits_and_runs(lived, monkeypatch):
    async def story(life):
        ticks = []
        life.running.reactor.subscribe(lambda step: ticks.append(step.stimulus))

        async def portions():
            ticks.clear()
            await asyncio.sleep(SOON_S)  # virtual time
            return {one.portion for one in ticks if isinstance(one, ClockTicked)}

        await life.submit("a", cpu=1)
        assert await portions() == {0}
        monkeypatch.setattr(monitor, "_FEW_RUNNING", -1)
        assert await portions() == {monitor._PORTION}

    lived(story)


def test_requests_are_served_between_the_parts_of_a_look(lived, monkeypatch):
    async def story(life):
        reactor, steps = life.running.reactor, []
        await asyncio.sleep(SOON_S)  # virtual time
        compare = monitor.ClusterMonitor._compare_actors

        async def compare_and_ask(*seen):
            await compare(*seen)
            life.ask(CordonNode(node_id="n", cordoned=True))

        monkeypatch.setattr(monitor.ClusterMonitor, "_compare_actors", compare_and_ask)
        reactor.subscribe(lambda step: steps.append(type(step.stimulus).__name__))
        await life.running.monitor.observe()
        monkeypatch.undo()
        assert steps.index("CordonRequested") < steps.index("ClockTicked")

    lived(story)


def test_a_look_that_goes_on_failing_is_counted_and_overdue(lived, monkeypatch, caplog):
    async def story(life):
        await asyncio.sleep(SOON_S)  # virtual time
        assert value(life, c.LOOP_OVERDUE, "cluster_monitor") == 0.0
        monkeypatch.setattr(FakeBackend, "living_actors", failing(ZeroDivisionError("a bug")))
        life.backend.free.append(NodeView(node_id="new", total=NODE, free=NODE, labels={}))
        await asyncio.sleep(100.0)  # virtual time
        assert "new" in life.running.reactor.state.cluster.nodes
        assert value(life, c.LOOP_FAILURES, "cluster_monitor") >= 90
        assert value(life, c.LOOP_OVERDUE, "cluster_monitor") > 60.0
        assert "loop_overdue" in [row["rule"] for row in life.running.alerts.rows()]
        monkeypatch.undo()
        await asyncio.sleep(SOON_S)  # virtual time
        assert value(life, c.LOOP_OVERDUE, "cluster_monitor") == 0.0

    lived(story)


def test_a_lost_group_that_cannot_be_removed_holds_nothing_else_up(lived):
    async def story(life):
        await life.submit("b", cpu=1, pool="g")
        (ray_id,) = life.backend.by_id
        life.hold("remove_group")
        group = life.backend.by_id[ray_id]
        life.backend.by_id[ray_id] = lives.rescheduling(group)
        await asyncio.sleep(SOON_S)  # virtual time
        removals = [call for call in life.held.pending if call.call == "remove_group"]
        assert len(removals) == 1
        life.backend.free.append(NodeView(node_id="new", total=NODE, free=NODE, labels={}))
        await asyncio.sleep(SOON_S)  # virtual time
        assert "new" in life.running.reactor.state.cluster.nodes
        assert [call for call in life.held.pending if call.call == "remove_group"] == removals

    lived(story)
