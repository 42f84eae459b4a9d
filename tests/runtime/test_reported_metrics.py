"""The last metrics of agents, taken from an agent's present process alone."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import Unplaced
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.protocol.agents import MetricsReport, pack
from schedulemesh.protocol.metric_values import MAX_METRICS_BYTES, encode_metrics
from schedulemesh.runtime.agents import reported_metrics
from schedulemesh.runtime.agents.reported_metrics import ReportedMetrics


@pytest.fixture
def state():
    """Agent "a" in its second life, and a task on "elsewhere", which is not ours."""
    made = MeshState()
    spec = AgentSpec(name="a", pool_name="p", resources=NOTHING)
    made.agents["a"] = Agent(
        spec=spec, incarnation=2, phase=Running(started_at=0.0), place=Unplaced(), admitted_at=0.0
    )
    register(made, "t", "elsewhere")
    return made


def register(state, task_id, agent_name):
    spec = TaskSpec(task_id=task_id, pool_name="p", priority=1.0)
    state.running.add(
        RunningTask(spec=spec, agent_name=agent_name, started_at=0.0, resources=NOTHING)
    )


def message(metrics, name="a", incarnation=2):
    encoded = metrics if type(metrics) is bytes else encode_metrics(metrics)
    return pack(
        MetricsReport(agent_name=name, incarnation=incarnation, metrics=msgspec.Raw(encoded))
    )


def test_the_last_report_counts(state):
    metrics = ReportedMetrics()
    assert metrics.newest_of("a") == {}
    for step in (1, 2):
        assert metrics.take(state, message({"step": step}), 1.0)
        assert metrics.newest_of("a") == {"step": step}


@pytest.mark.parametrize(
    ("name", "incarnation"),
    [("a", 1), ("a", 3), ("a", None), ("b", 2), ("elsewhere", 1), ("nobody", None)],
)
def test_a_report_of_another_agent_or_incarnation_is_refused(state, name, incarnation):
    metrics = ReportedMetrics()
    assert metrics.take(state, message({"step": 1}), 1.0)
    assert not metrics.take(state, message({"step": 9}, name, incarnation), 1.0)
    assert metrics.newest_of("a") == {"step": 1}
    assert metrics.newest_of(name if name != "a" else "b") == {}


@pytest.mark.parametrize(
    "given",
    [
        None,
        "a",
        object(),
        b"",
        b"\xc1",
        message({f"x{n}": "y" * 9000 for n in range(MAX_METRICS_BYTES // 4000)}),
    ],
    ids=["none", "text", "object", "empty", "garbled", "large"],
)
def test_what_is_no_report_is_refused(state, given):
    metrics = ReportedMetrics()
    assert not metrics.take(state, given, 1.0)
    assert metrics.newest_of("a") == {}


@pytest.mark.parametrize("encoded", [b"\x01", b"\x81\x01\x01", b"\x81\xa1a\xa1\xff"])
def test_metrics_that_cannot_be_read_are_none(state, encoded):
    metrics = ReportedMetrics()
    metrics.take(state, message(encoded), 1.0)
    assert metrics.newest_of("a") == {}


def test_they_go_with_their_process(state):
    metrics = ReportedMetrics()
    metrics.take(state, message({"step": 1}), 1.0)
    metrics.forget("a", 1)
    assert metrics.newest_of("a") == {"step": 1}, "another life of it ended"
    metrics.forget("a", 2)
    assert metrics.newest_of("a") == {}


def test_an_agent_that_never_reported_holds_nothing_back(state):
    metrics = ReportedMetrics()
    assert not metrics.may_have_newer("a")
    metrics.take_over("a")
    assert metrics.may_have_newer("a"), "a former supervisor may have heard of it"
    metrics.forget("a", 2)
    assert not metrics.may_have_newer("a")
    metrics.take(state, message({"step": 1}), 1.0)
    assert metrics.may_have_newer("a")


def test_an_external_agent_may_report_while_a_task_is_registered_on_it(state, monkeypatch):
    monkeypatch.setattr(reported_metrics, "_OUTSIDE", 2)
    metrics = ReportedMetrics()
    assert metrics.take(state, message({"step": 1}, "elsewhere", None), 1.0)
    assert metrics.newest_of("elsewhere") == {"step": 1}
    state.running.remove("t")
    for n in range(3):
        register(state, f"u{n}", f"other{n}")
        assert metrics.take(state, message({"step": n}, f"other{n}", None), 1.0)
    assert metrics.newest_of("elsewhere") == {}, "nothing of it runs any more"
    assert metrics.newest_of("other2") == {"step": 2}


def counted(metrics, name="a"):
    return [row["count"] for row in metrics.aggregates.rows([name], 1.0) if row is not None]


def test_a_report_that_is_sent_again_is_aggregated_once(state):
    metrics = ReportedMetrics()
    numbered = pack(
        MetricsReport(
            agent_name="a",
            incarnation=2,
            metrics=msgspec.Raw(encode_metrics({"step": 1})),
            number=7,
        )
    )
    for _ in range(3):
        assert metrics.take(state, numbered, 1.0)
    assert counted(metrics) == [1]
    assert metrics.take(state, message({"step": 1}), 1.0)
    assert counted(metrics) == [2]
    metrics.forget("a", 2)
    assert counted(metrics) == []
