"""What agents report is turned into idle GPUs and measured ends, where the policy asks for it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.facts import EvictionStarted
from schedulemesh.engine.messages.limit_facts import IdleLimitCleared, IdleLimitNear
from schedulemesh.engine.messages.measurement_facts import EndMeasured, GpusBusy, GpusIdle
from schedulemesh.metrics.gauges import families
from schedulemesh.protocol.agents import MetricsReport, Usage, pack
from schedulemesh.protocol.metric_values import encode_metrics
from schedulemesh.runtime.agents.measurements import Measurements
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.usage import STALE_S
from tests.engine.builders import Mesh, node
from tests.runtime.fake_backend import FakeBackend


class Reactor:
    """The engine of a mesh, and what it was told."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.told = []

    @property
    def state(self):
        return self.mesh.state

    def now(self):
        return self.mesh.now

    async def read(self, look):
        return look()

    async def step(self, stimulus):
        step = self.mesh.handle(stimulus)
        self.told += step.facts
        return step


class Stage:
    """Two agents of two GPUs each, with a task, that report as they are told to."""

    def __init__(self, **policy):
        pool = PoolSpec(name="p", resources=parse_resources({"cpu": 8, "gpu": 4}))
        self.mesh = Mesh(pool, nodes=[node("n", cpu=8, gpu=4)])
        for name in ("a", "b"):
            self.mesh.run(name, cpu=1, gpu=2, priority=1.0, duration=1000.0)
        if policy:
            self.mesh.policy(**policy)
        self.reactor = Reactor(self.mesh)
        self.restart()

    def restart(self):
        """Another supervisor begins, with what the journal has."""
        self.agents = Agents(FakeBackend(), "mesh", "space")
        self.measurements = Measurements(self.reactor, self.agents)

    def uses(self, name, percent):
        agent = self.mesh.state.agents[name]
        usage = Usage(cpu=0.5, memory_mb=1.0, gpu_utilization=percent, gpu_memory_mb=1.0)
        self.agents.usage.take(name, agent.incarnation, pack(usage), self.mesh.now)

    def reports(self, name, **values):
        report = MetricsReport(
            agent_name=name,
            incarnation=self.mesh.state.agents[name].incarnation,
            metrics=msgspec.Raw(encode_metrics(values)),
        )
        assert self.agents.metrics.take(self.mesh.state, pack(report), self.mesh.now)

    def after(self, seconds):
        """What the engine is told of a look after some time."""
        self.mesh.now += seconds
        before = len(self.reactor.told)
        asyncio.run(self.measurements.look())
        return self.reactor.told[before:]


IDLE = {"idle_gpu_percent": 5.0, "idle_gpu_s": 60.0}


def test_gpus_are_idle_after_they_were_used_too_little_for_as_long_as_the_policy_says():
    stage = Stage(**IDLE)
    began = stage.mesh.now
    for _ in range(5):
        stage.uses("a", 1.0)
        stage.uses("b", 90.0)
        assert stage.after(10.0) == []
    stage.uses("a", 1.0)
    assert stage.after(10.0) == [GpusIdle(agent_name="a", since=began, at=stage.mesh.now)]
    shown = {metric.name: list(samples) for metric, samples in families(stage.mesh.state)}
    assert [(x.labels, x.value) for x in shown["schedulemesh_gpus_idle"]] == [(("p",), 2.0)]
    stage.uses("a", 50.0)
    assert stage.after(5.0) == [GpusBusy(agent_name="a", at=stage.mesh.now)]


def test_one_look_at_which_they_are_used_begins_the_time_anew():
    stage = Stage(**IDLE)
    for percent in (1.0, 1.0, 1.0, 50.0, 1.0, 1.0, 1.0):
        stage.uses("a", percent)
        assert stage.after(15.0) == []


def test_an_agent_may_report_its_utilisation_itself():
    stage = Stage(**IDLE)
    stage.reports("a", gpu_utilization=0.0)
    assert stage.after(1.0) == []
    stage.reports("a", gpu_utilization=0.0)
    assert [type(fact) for fact in stage.after(60.0)] == [GpusIdle]


@pytest.mark.parametrize("value", ["0", True, None, float("nan"), [0]])
def test_what_is_no_utilisation_makes_nobody_idle(value):
    stage = Stage(**IDLE)
    for _ in range(3):
        stage.reports("a", gpu_utilization=value)
        assert stage.after(60.0) == []


def test_where_the_utilisation_is_not_known_any_more_the_agent_is_not_idle():
    stage = Stage(**IDLE)
    for _ in range(3):
        stage.uses("a", 0.0)
        stage.after(50.0)
    assert stage.mesh.state.running.idle.keys() == {"a"}
    assert stage.after(STALE_S) == [GpusBusy(agent_name="a", at=stage.mesh.now)]


def idle_stage():
    """Agent ``a`` is idle, and another supervisor has just begun."""
    stage = Stage(**IDLE)
    for _ in range(2):
        stage.uses("a", 0.0)
        stage.after(60.0)
    assert stage.mesh.state.running.idle.keys() == {"a"}
    stage.restart()
    return stage


def test_after_a_restart_an_idle_agent_stays_idle_until_it_is_measured_again():
    stage = idle_stage()
    assert stage.after(5.0) == []
    stage.uses("a", 0.0)
    assert stage.after(5.0) == []
    stage.uses("a", 50.0)
    assert stage.after(5.0) == [GpusBusy(agent_name="a", at=stage.mesh.now)]


def test_an_idle_agent_that_is_not_measured_after_a_restart_is_not_idle_for_ever():
    stage = idle_stage()
    assert stage.after(STALE_S) == []
    assert stage.after(5.0) == [GpusBusy(agent_name="a", at=stage.mesh.now)]


def test_an_end_follows_from_the_progress_since_the_first_report():
    stage = Stage(measured_progress=True)
    stage.reports("a", progress=0.5)
    assert stage.after(10.0) == [], "one report says nothing about the rate"
    stage.reports("a", progress=0.6)
    reported = stage.mesh.now
    (fact,) = stage.after(1.0)
    assert fact == EndMeasured(
        task_id="a", ends_at=pytest.approx(reported + 40.0), at=stage.mesh.now
    )
    assert stage.after(1.0) == []
    stage.mesh.now += 8.0
    stage.reports("a", progress=0.7)
    assert stage.after(0.0) == [], "it goes on as before"


def test_progress_in_quick_succession_says_nothing_about_the_rate():
    stage = Stage(measured_progress=True)
    stage.reports("a", progress=0.0)
    assert stage.after(0.9) == []
    stage.reports("a", progress=0.9)
    assert stage.after(10.0) == []
    stage.reports("a", progress=0.91)
    (fact,) = stage.after(0.0)
    assert fact.ends_at == pytest.approx(stage.mesh.now + 0.09 * 10.9 / 0.91)


@pytest.mark.parametrize("values", [(0.5, 0.4), (0.5, 0.5), (0.5, 1.5), (-1.0, 0.5), ("x", 0.5)])
def test_progress_that_says_nothing_leaves_the_estimate(values):
    stage = Stage(measured_progress=True)
    for value in values:
        stage.reports("a", progress=value)
        assert stage.after(20.0) == []


def measured_stage():
    """The end of task ``a`` is measured."""
    stage = Stage(measured_progress=True)
    stage.reports("a", progress=0.0)
    stage.after(100.0)
    stage.reports("a", progress=0.5)
    assert [type(fact) for fact in stage.after(1.0)] == [EndMeasured]
    return stage


def test_where_progress_falls_the_estimate_counts_until_it_is_measured_anew():
    stage = measured_stage()
    stage.reports("a", progress=0.1)
    assert stage.after(5.0) == [EndMeasured(task_id="a", at=stage.mesh.now)]
    assert stage.after(5.0) == []
    stage.reports("a", progress=0.2)
    # A tenth in 10 s, and eight of them are left.
    ends_at = pytest.approx(stage.mesh.now + 80.0)
    assert [fact.ends_at for fact in stage.after(5.0)] == [ends_at]


def test_the_estimate_counts_again_once_an_agent_has_several_tasks():
    stage = measured_stage()
    stage.mesh.announce("more", "a")
    assert stage.after(5.0) == [EndMeasured(task_id="a", at=stage.mesh.now)]
    assert stage.after(5.0) == []


def test_after_a_restart_a_measured_end_counts_until_it_is_measured_again():
    stage = measured_stage()
    stage.restart()
    stage.reports("a", progress=0.6)
    assert stage.after(5.0) == []


def test_an_agent_with_several_tasks_is_not_measured():
    stage = Stage(measured_progress=True)
    stage.mesh.announce("other", "a")
    for progress in (0.1, 0.2):
        stage.reports("a", progress=progress)
        assert stage.after(20.0) == []


def test_what_an_agent_reports_while_it_is_ended_is_forgotten_with_it(monkeypatch):
    stage = Stage()
    stage.uses("a", 1.0)
    stage.reports("a", loss=1.0)

    async def killed(_handle):
        stage.uses("a", 2.0)
        stage.reports("a", loss=2.0)

    async def ended():
        agent = stage.mesh.state.agents["a"]
        await stage.agents.adopt(agent)
        await stage.agents.end("a", agent.incarnation)

    monkeypatch.setattr(stage.agents, "_kill", killed)
    asyncio.run(ended())
    assert stage.agents.metrics.aggregates.agents() == []
    assert stage.agents.metrics.newest_of("a") == {}
    assert stage.agents.usage.newest_of("a", stage.mesh.now) is None


def test_without_the_policy_nothing_is_told():
    stage = Stage()
    for _ in range(3):
        stage.uses("a", 0.0)
        stage.reports("b", progress=0.5, gpu_utilization=0.0)
        assert stage.after(1000.0) == []


# -- limits for idle GPUs


def limited(idle_s=60.0):
    """The stage, whose pool has a limit for idle GPUs, and whose policy asks for no measurements."""
    stage = Stage()
    spec = stage.mesh.state.ledger.accounts["p"].spec
    stage.mesh.resize(msgspec.structs.replace(spec, idle_s=idle_s))
    return stage


def look_at(stage, seconds, **percent):
    """Several looks while the GPUs of these agents are used so much; what the engine was told."""
    told = []
    for _ in range(int(seconds // 10)):
        for name, used in percent.items():
            stage.uses(name, used)
        told += stage.after(10.0)
    return told


def test_gpus_that_are_not_used_are_warned_of_and_then_end_their_task_whatever_the_policy_asks():
    stage = limited()
    facts = look_at(stage, 70.0, a=0.5, b=1.0)
    assert [(type(fact), fact.task_id) for fact in facts] == [(IdleLimitNear, "a")]
    facts = look_at(stage, 60.0, a=0.0, b=50.0)
    assert [fact.task_id for fact in facts if isinstance(fact, EvictionStarted)] == ["a"]
    assert list(stage.mesh.ends) == ["a"]


def test_gpus_that_are_not_measured_any_more_end_nothing():
    stage = limited(idle_s=2 * STALE_S)
    assert [type(fact) for fact in look_at(stage, 2 * STALE_S + 10.0, a=0.0)] == [IdleLimitNear]
    facts = look_at(stage, 4 * STALE_S)
    assert [type(fact) for fact in facts] == [IdleLimitCleared]
    assert stage.mesh.ends == {}


def test_a_restart_of_the_supervisor_forgets_no_warning():
    stage = limited()
    look_at(stage, 70.0, a=0.0)
    stage.restart()
    facts = look_at(stage, 70.0, a=0.0)
    assert [fact.task_id for fact in facts if isinstance(fact, EvictionStarted)] == ["a"]
