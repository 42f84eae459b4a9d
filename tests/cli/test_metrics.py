"""The command metrics."""

from __future__ import annotations

import csv
import io
import json

import pytest

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
    assert "schedulemesh_pool_quota" in done.stdout.replace("\n", "")
    if form == "table":
        assert max(map(len, done.stdout.splitlines())) <= 80
