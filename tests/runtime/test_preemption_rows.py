"""Records of preemptions as callers see them, selected by who took part."""

from __future__ import annotations

import pytest

from schedulemesh.api.preemption import ListPreemptions
from schedulemesh.runtime.preemption_rows import preemption_row, selected
from tests.engine.builders import Mesh, pool


@pytest.fixture
def mesh():
    """In pool p "low" is evicted for "high" of pool q; in pool r one task on request."""
    mesh = Mesh(pool("p", cpu=1), pool("q", cpu=1), pool("r", cpu=1))
    mesh.run("low", priority=1.0, cpu=1)
    mesh.run("other", "q", priority=9.0, cpu=1)
    mesh.tick(10.0)
    mesh.submit("high", "q", priority=9.0, cpu=1)
    mesh.tick(1.5)
    mesh.slot("high")
    mesh.run("third", "r", cpu=1)
    mesh.preempt(task_id="third", end_agent=True, client="host:7")
    return mesh


def rows(mesh, **which):
    records = selected(mesh.state.evictions.records.values(), ListPreemptions(**which))
    return [preemption_row(record) for record in records]


def test_a_row_has_everything_about_both_sides(mesh):
    (row,) = rows(mesh, task_id="low")
    assert row["evictor"] == {
        "task_id": "high",
        "agent_name": "high",
        "pool_name": "q",
        "owner": "",
        "priority": 9.0,
    }
    assert (row["task_id"], row["pool_name"], row["priority"]) == ("low", "p", 1.0)
    assert (row["reason"], row["lost_work"]) == ("cross_pool_preemption", 10.0)
    times = (row["time_to_evicted"], row["time_to_freed"], row["time_to_start"])
    assert times == (1.5, 1.5, 1.5)
    assert (row["used"], row["state_saved"], row["requested_by"]) == (True, False, None)


def test_one_in_progress_is_listed_too(mesh):
    (row,) = rows(mesh, pool_name="r")
    assert (row["requested_by"], row["evictor"], row["time_to_evicted"]) == ("host:7", None, None)
    assert row["timestamp"] == row["decided_at"]


@pytest.mark.parametrize(
    ("which", "found"),
    [
        ({}, ["low", "third"]),
        ({"limit": 1}, ["third"]),
        ({"limit": 0}, []),
        ({"task_id": "high"}, ["low"]),
        ({"pool_name": "q"}, ["low"]),
        ({"pool_name": "p", "task_id": "third"}, []),
        ({"owner": "nobody"}, []),
    ],
)
def test_they_are_selected_by_either_side(mesh, which, found):
    assert [row["task_id"] for row in rows(mesh, **which)] == found
