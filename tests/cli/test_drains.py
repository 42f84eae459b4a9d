"""The commands drain, undrain, drains and cohorts: tables that fit 80 columns, a request for each name."""

from __future__ import annotations

import json

from rich.cells import cell_len


def lines_fit(done, width=80):
    return all(cell_len(line) <= width for line in done.stdout.splitlines())


def test_a_pool_is_drained_and_opened_again(scheduler, run):
    scheduler.pool()
    scheduler.submit("训练", estimated_duration=60.0)
    done = run("drain", "研究", "--pool", "--deadline", "600")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["研究", "draining"]
    shown = run("drains")
    assert lines_fit(shown)
    assert shown.stdout.splitlines()[1].split()[:2] == ["pool", "研究"]
    (row,) = json.loads(run("drains", "-o", "json").stdout)
    assert (row["pool_name"], row["tasks"], row["by_ray"]) == ("研究", ["训练"], False)
    assert row["deadline"] > row["started_at"]
    assert run("undrain", "研究", "--pool").exit_code == 0
    assert json.loads(run("drains", "-o", "json").stdout) == []


def test_an_unknown_node_is_refused_and_the_others_are_drained(scheduler, run):
    scheduler.pool()
    done = run("drain", "nowhere", "研究")
    assert done.exit_code == 3
    assert "nowhere" in done.stderr
    assert run("drain", "nowhere", "--deadline", "-1").exit_code == 2


def test_cohorts_are_a_table_that_fits_80_columns(scheduler, run):
    assert scheduler.calls.ensure_cohort("公司")["success"]
    assert scheduler.calls.ensure_cohort("模型部", parent="公司")["success"]
    scheduler.pool(cohort="模型部")
    scheduler.submit("训练", cpu=1)
    done = run("cohorts")
    assert lines_fit(done)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["模型部", "公司", "研究", "cpu", "4", "cpu", "3"] in rows
    assert json.loads(run("cohorts", "-o", "json", "-f", "name=模型部").stdout)[0]["idle"] == {
        "cpu": 3.0
    }
