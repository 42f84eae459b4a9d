"""The ready-made agents as plain objects, outside of any scheduler."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace

import pytest

from schedulemesh.core.agent import metrics_sender
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from schedulemesh.protocol.agents import MetricsReport, unpack
from schedulemesh.protocol.metric_values import decode_metrics


def test_work_is_handed_back():
    answer = AgentActor("a", {"tier": "gold"}).process({"x": 1}, task_id="t")
    duration = answer.pop("duration")
    assert duration >= 0
    assert answer == {"agent": "a", "task_id": "t", "status": "completed", "payload": {"x": 1}}


def test_work_is_cancelled_before_and_while_it_runs():
    agent = AgentActor("a")
    assert agent.cancel("t") == {"success": True, "task_id": "t", "agent": "a"}
    assert agent.is_cancelled("t")
    assert agent.process(task_id="t", simulated_duration=60.0)["status"] == "cancelled"
    assert agent.process(task_id="t")["status"] == "completed", "the id may be used again"

    answers = []
    worker = threading.Thread(
        target=lambda: answers.append(agent.process(task_id="u", simulated_duration=60.0))
    )
    worker.start()
    agent.cancel("u")
    worker.join(30)
    assert answers[0]["status"] == "cancelled"


def test_invoke_calls_public_methods_only():
    agent = AgentActor("a")
    assert agent.invoke("process", payload=1)["payload"] == 1
    for name in ("_stop_event", "__init__", "nonsense"):
        with pytest.raises(AttributeError, match=name):
            agent.invoke(name)


def test_a_safe_point_outside_of_a_scheduler_is_nothing():
    AgentActor("a").safe_point()


def test_metrics_without_a_scheduler_go_nowhere():
    assert MetricsReportingAgent("a").report_metrics({"step": 1}) is False


def test_metrics_of_an_external_agent_go_to_the_given_supervisor(monkeypatch):
    arrived = queue.Queue()
    supervisor = SimpleNamespace(report_metrics=SimpleNamespace(remote=arrived.put))
    monkeypatch.setattr(metrics_sender.ray, "get", lambda ref: None)
    agent = MetricsReportingAgent("a", supervisor=supervisor, report_interval=3600.0)
    assert agent.report_metrics({"step": 1}, loss=0.5)
    report = unpack(arrived.get(timeout=30), MetricsReport)
    assert (report.agent_name, report.incarnation) == ("a", None)
    assert decode_metrics(report.metrics) == {"step": 1, "loss": 0.5}
    assert not agent.report_metrics({"step": 2})
    assert agent.report_metrics({"step": 3}, at_once=True)
    report = unpack(arrived.get(timeout=30), MetricsReport)
    assert decode_metrics(report.metrics) == {"step": 3}
