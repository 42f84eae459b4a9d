"""Reported values over a window that is bounded in time and in size."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.metrics import aggregation
from schedulemesh.metrics.aggregation import (
    MAX_AMOUNT,
    MAX_NAME,
    MAX_NAMES,
    MAX_VALUES,
    WINDOW_S,
    Aggregates,
    numbers_in,
    quantile,
)


def rows(aggregates, agents, now, names=()):
    return [row for row in aggregates.rows(agents, now, names) if row is not None]


def test_a_metric_is_aggregated():
    found = Aggregates()
    for at, loss in ((10.0, 4.0), (11.0, 1.0), (12.0, 2.0), (13.0, 3.0)):
        found.add("a", {"loss": loss, "stage": "train"}, at)
    assert rows(found, ["a"], 14.0) == [
        {
            "metric": "loss",
            "agents": 1,
            "count": 4,
            "last": 3.0,
            "last_at": 13.0,
            "since": 10.0,
            "mean": 2.5,
            "min": 1.0,
            "max": 4.0,
            "p50": 2.0,
            "p95": 4.0,
        }
    ]


def test_several_agents_are_aggregated_together():
    found = Aggregates()
    found.add("a", {"loss": 1.0, "step": 5}, 10.0)
    found.add("b", {"loss": 3.0}, 9.0)
    loss, step = rows(found, ["a", "b"], 14.0)
    assert (loss["agents"], loss["count"], loss["mean"], loss["last"]) == (2, 2, 2.0, 1.0)
    assert (step["metric"], step["agents"]) == ("step", 1)
    assert [row["metric"] for row in rows(found, ["a", "b"], 14.0, ["step"])] == ["step"]


def test_values_leave_the_window_by_time():
    found = Aggregates()
    found.add("a", {"loss": 1.0}, 0.0)
    found.add("a", {"loss": 2.0}, 10.0)
    assert rows(found, ["a"], WINDOW_S)[0]["count"] == 2
    assert rows(found, ["a"], WINDOW_S + 5.0)[0]["min"] == 2.0
    assert rows(found, ["a"], WINDOW_S + 11.0) == []


def test_values_leave_the_window_by_number():
    found = Aggregates()
    for n in range(MAX_VALUES + 7):
        found.add("a", {"step": n}, float(n) / 100)
    (row,) = rows(found, ["a"], 10.0)
    assert (row["count"], row["min"], row["last"]) == (MAX_VALUES, 7.0, MAX_VALUES + 6)


def test_of_a_large_group_the_newest_values_of_each_agent_count(monkeypatch):
    monkeypatch.setattr(aggregation, "MAX_MERGED", 10)
    found = Aggregates()
    names = [f"a{n}" for n in range(5)]
    for step in range(8):
        for name in names:
            found.add(name, {"step": step}, float(step))
    (row,) = rows(found, names, 10.0)
    assert (row["agents"], row["count"], row["min"], row["max"]) == (5, 10, 6.0, 7.0)


def test_what_is_no_number_is_ignored():
    report = {
        "yes": True,
        "text": "1",
        "nan": math.nan,
        "infinite": math.inf,
        "huge": MAX_AMOUNT * 10,
        "list": [1, 2],
        "none": None,
        "n" * (MAX_NAME + 1): 1,
        "int": 2**63,
        "inner": {"loss": 1.5, "deeper": {"x": 1, "deepest": {"y": 1}}},
    }
    assert dict(numbers_in(report)) == {
        "int": 2.0**63,
        "inner.loss": 1.5,
        "inner.deeper.x": 1.0,
    }


def test_the_number_of_metrics_is_limited(monkeypatch):
    found = Aggregates()
    found.add("a", {f"m{n}": n for n in range(MAX_NAMES + 3)}, 1.0)
    assert len(rows(found, ["a"], 1.0)) == MAX_NAMES
    assert found.dropped == 3
    monkeypatch.setattr(aggregation, "MAX_SERIES", MAX_NAMES + 1)
    found.add("b", {"x": 1, "y": 2}, 1.0)
    assert len(rows(found, ["b"], 1.0)) == 1
    found.forget("a")
    found.add("b", {"x": 1, "y": 2}, 1.0)
    assert len(rows(found, ["b"], 1.0)) == 2, "an agent that has ended makes room"
    assert found.agents() == ["b"]


def test_metrics_that_are_not_reported_any_more_make_room():
    found = Aggregates()
    for n in range(MAX_NAMES):
        found.add("a", {f"m{n}": n}, 1.0)
    found.add("a", {"m0": 5}, 2.0 + WINDOW_S)
    found.add("a", {"loss": 1}, 2.0 + WINDOW_S)
    assert [row["metric"] for row in rows(found, ["a"], 2.0 + WINDOW_S)] == ["loss", "m0"]
    assert found.dropped == 0


def test_an_agent_that_reports_no_number_takes_no_room():
    found = Aggregates()
    found.add("a", {"stage": "train"}, 1.0)
    assert found.agents() == []


@given(
    values=st.lists(st.floats(-1e99, 1e99), min_size=1, max_size=2 * MAX_VALUES),
    agents=st.integers(1, 3),
)
def test_every_row_agrees_with_the_values_that_are_kept(values, agents):
    found, kept = Aggregates(), {}
    for n, value in enumerate(values):
        name = f"a{n % agents}"
        found.add(name, {"x": value}, n * 0.5)
        kept.setdefault(name, []).append(value)
    (row,) = rows(found, sorted(kept), len(values) * 0.5)
    newest = sorted(value for own in kept.values() for value in own[-MAX_VALUES:])
    assert (row["count"], row["min"], row["max"]) == (len(newest), newest[0], newest[-1])
    assert row["last"] == values[-1]
    assert row["mean"] == pytest.approx(math.fsum(newest) / len(newest))
    for key, part in (("p50", 0.5), ("p95", 0.95)):
        below = sum(value <= row[key] for value in newest)
        assert below >= part * len(newest)
        assert row[key] in newest


def test_quantiles_of_few_values():
    assert quantile([7.0], 0.95) == 7.0
    assert quantile([1.0, 2.0], 0.5) == 1.0
