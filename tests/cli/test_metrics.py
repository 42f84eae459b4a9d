"""The command metrics."""

from __future__ import annotations

import csv
import io
import json

import msgspec
import pytest

from schedulemesh.cli import metrics as metrics_command
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import MetricsReport, Usage, pack
from schedulemesh.protocol.metric_values import encode_metrics
from tests.metrics.metered import parsed

FORMATS = ("table", "wide", "json", "yaml", "csv", "name")


@pytest.fixture
def busy(scheduler):
    scheduler.pool(cpu=2)
    scheduler.submit("甲")
    return scheduler


def test_the_text_is_what_python_gets(busy, run):
    """But for the metrics that time changes."""
    text = run("metrics", "--prometheus").stdout
    found, given = parsed(text), parsed(busy.calls.metrics_text())
    stable = "schedulemesh_pool_quota", "schedulemesh_agents", "schedulemesh_tasks"
    chosen = [{k: v for k, v in each.items() if k[0] in stable} for each in (found, given)]
    assert chosen[0] == chosen[1]
    assert found["schedulemesh_agents", "研究", "running"] == 1


def test_the_text_is_utf8_whatever_the_encoding_of_stdout_is(busy, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    metrics_command._print_text(None, agents=False)
    stdout.flush()
    assert 'schedulemesh_agents{pool="研究",'.encode() in stdout.buffer.getvalue()


def test_rows_are_chosen(busy, run):
    words = ("metrics", "-f", "name=schedulemesh_agents", "-l", "state=running", "-o", "json")
    assert json.loads(run(*words).stdout) == [
        {
            "name": "schedulemesh_agents",
            "labels": {"pool": "研究", "state": "running"},
            "value": 1,
            "unit": "agents",
        }
    ]
    table = list(csv.reader(io.StringIO(run("metrics", "-o", "csv").stdout)))
    assert table[0][:3] == ["name", "labels", "value"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(busy, run, form):
    done = run("metrics", "-o", form)
    assert (done.exit_code, done.stderr) == (0, "")
    shown = "quota used" if form == "table" else "schedulemesh_pool_quota"
    assert shown in done.stdout.replace("\n", "")


def test_a_dozen_figures_say_how_the_scheduler_fares(busy, run):
    busy.submit("乙", queue=True)
    busy.submit("丙", queue=True)
    lines = dict(line.split("  ", 1) for line in run("metrics").stdout.splitlines())
    figures = {heading: figure.strip() for heading, figure in lines.items()}
    assert 10 <= len(figures) <= 14
    assert figures["tasks"] == "2 running, 0 starting, 0 preempting, 1 queued"
    assert figures["submissions"] == "2 admitted, 1 queued"
    assert figures["quota used"] == "cpu 2 of cpu 2"
    assert figures["decision"].endswith(" ms")
    assert figures["alerts"] == "0 firing"
    rows = run("metrics", "-f", "name=schedulemesh_agents").stdout
    assert "schedulemesh_agents" in rows, "a filter chooses among all metrics"


def report(scheduler, task_id, **values):
    """Report as the process of a task's agent does."""
    service = scheduler.connection.service
    state = service.running.reactor.state
    agent = state.agents[state.running.by_id[task_id].agent_name]
    message = pack(
        MetricsReport(
            agent_name=agent.spec.name,
            incarnation=agent.incarnation,
            metrics=msgspec.Raw(encode_metrics(values)),
        )
    )
    assert service.do(service.service.report_metrics(message))


@pytest.fixture
def reported(busy):
    """Two agents of a pool and one of another that have reported; labels are of agents and tasks."""
    busy.pool("other", cpu=4, labels={"team": "b"})
    busy.submit("乙", labels={"team": "a"})
    busy.submit("c", "other", labels={"team": "a"})
    for step in (1, 2, 3):
        report(busy, "甲", step=step, stage="train")
    report(busy, "乙", step=5)
    report(busy, "c", step=7, loss=0.5)
    return busy


def test_reported_metrics_are_aggregated_by_agent_pool_and_label(reported, run):
    def rows(*words):
        return json.loads(run("metrics", *words, "-o", "json").stdout)

    names = {task["task_id"]: task["agent_name"] for task in reported.calls.list_tasks()["tasks"]}
    by_agent = {(row["agent_name"], row["metric"]): row for row in rows("--by", "agent")}
    seen = [("甲", "step"), ("乙", "step"), ("c", "step"), ("c", "loss")]
    assert by_agent.keys() == {(names[task], metric) for task, metric in seen}
    own = by_agent[names["甲"], "step"]
    assert (own["pool_name"], own["count"], own["last"], own["mean"]) == ("研究", 3, 3, 2)
    by_pool = {(row["pool_name"], row["metric"]): row for row in rows("--by", "pool")}
    pool = by_pool["研究", "step"]
    assert (pool["agents"], pool["count"], pool["max"], pool["p50"]) == (2, 4, 5, 2)
    (label,) = rows("--by", "label", "-f", "metric=step", "-f", "label=team")
    assert (label["label_value"], label["agents"], label["mean"]) == ("a", 2, 6)
    calls = reported.calls
    assert calls.get_metrics("label", label="team")["metrics"] == rows(
        "--by", "label", "-f", "label=team"
    )
    assert [row["metric"] for row in calls.get_metrics(names=["loss"])["metrics"]] == ["loss"]
    assert calls.get_metrics(pool="研究", agent=names["c"])["metrics"] == []
    reported.calls.delete_agent(names["c"])
    assert [row["agent_name"] for row in calls.get_metrics(names=["loss"])["metrics"]] == []


def test_an_unknown_grouping_is_refused(reported, run):
    done = run("metrics", "--by", "node")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "allowed are agent, pool, label" in " ".join(done.stderr.split())
    with pytest.raises(InvalidRequestError, match="by is 'node'"):
        reported.calls.get_metrics("node")
    with pytest.raises(InvalidRequestError, match="only where metrics are aggregated by label"):
        reported.calls.get_metrics("pool", label="team")


@pytest.mark.parametrize("by", ["agent", "pool", "label"])
@pytest.mark.parametrize("form", FORMATS)
def test_reported_metrics_in_every_format(reported, run, form, by):
    done = run("metrics", "--by", by, "-o", form)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "step" in done.stdout
    if form == "table":
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_what_agents_use_is_shown_by_agent_where_it_is_asked_for(busy, run):
    service = busy.connection.service
    (agent,) = service.running.reactor.state.agents.values()
    name = agent.spec.name
    usage = pack(Usage(cpu=0.5, memory_mb=64.0))
    service.do(service.service.report_usage(name, agent.incarnation, b"", usage))
    service.do(
        service.service.report_usage(
            name, agent.incarnation + 1, b"", pack(Usage(cpu=9, memory_mb=9))
        )
    )
    used = "schedulemesh_agent_measured_usage"
    assert used not in run("metrics", "-o", "csv").stdout
    rows = json.loads(run("metrics", "--agents", "-f", f"name={used}", "-o", "json").stdout)
    assert {row["labels"]["resource"]: row["value"] for row in rows} == {"cpu": 0.5, "memory": 64}
    assert (
        parsed(run("metrics", "--prometheus", "--agents").stdout)[used, "研究", name, "cpu"] == 0.5
    )
    (row,) = busy.calls.list_agents()["agents"]
    assert row["usage"]["cpu"] == 0.5
    (entry,) = busy.calls.get_metrics(names=["cpu_used"])["metrics"]
    assert (entry["agent_name"], entry["last"]) == (name, 0.5)
    assert "0.5 cpu, 64 MB" in run("agents", "-o", "wide", width=250).stdout
