"""Priorities of tasks that run are changed, and pools permit some only."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.reasons import Change
from schedulemesh.engine.messages.outcomes import Done, Refused
from schedulemesh.engine.messages.queue_facts import PriorityChanged
from tests.engine.builders import Mesh, differences, node, pool


def mesh_of():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.queue("t", cpu=4, priority=1.0, class_key="c", on_preempted="requeue")
    mesh.report("t")
    return mesh


def is_stored(mesh):
    return (
        differences(mesh.state, mesh.refolded()) + differences(mesh.state, mesh.rewritten()) == []
    )


def test_a_task_with_more_priority_is_evicted_no_more():
    mesh = mesh_of()
    assert mesh.change("t", priority=9.0) == Done()
    assert mesh.facts[-1] == PriorityChanged(task_id="t", priority=9.0, at=mesh.now)
    assert mesh.submit("high", priority=9.0, cpu=4).reason == "preemption_failed"
    assert mesh.change("t", priority=9.0) == Done(change=Change.UNCHANGED)
    assert is_stored(mesh)


def test_a_task_with_less_priority_is_evicted_for_one_that_waits():
    mesh = mesh_of()
    mesh.change("t", priority=9.0)
    mesh.queue("w", priority=5.0, cpu=4)
    mesh.tick()
    assert mesh.ends == {}
    mesh.change("t", priority=1.0)
    mesh.tick()
    assert list(mesh.ends) == ["t"]
    mesh.leave("t", saved=True)
    assert mesh.state.queue.by_id["t"].spec.priority == 1.0
    assert is_stored(mesh)


def test_a_task_waits_again_with_its_new_priority():
    mesh = mesh_of()
    mesh.change("t", priority=4.0)
    mesh.preempt(agent_name="t", end_agent=True)
    mesh.leave("t", saved=True)
    assert mesh.state.running.by_id["t"].spec.priority == 4.0


def test_a_task_that_starts_may_be_changed_and_one_that_runs_is_not_held():
    mesh = mesh_of()
    mesh.complete("t")
    mesh.submit("s", cpu=4)
    assert mesh.change("s", priority=2.0) == Done()
    assert isinstance(mesh.change("s", held=True), Refused)
    assert mesh.change("none", priority=2.0).reason == "task_not_found"
    assert is_stored(mesh)


def limited(**limits):
    spec = msgspec.structs.replace(pool("p", cpu=4), **limits)
    return Mesh(spec, nodes=[node("a", cpu=4)])


@pytest.mark.parametrize(
    ("limits", "permitted", "error"),
    [
        ({"max_priority": 5.0}, (-1.0, 5.0), "pool 'p' permits priorities up to 5, not 9"),
        ({"min_priority": 10.0}, (10.0, 99.0), "pool 'p' permits priorities from 10, not 9"),
        (
            {"min_priority": 1.0, "max_priority": 5.0},
            (1.0, 5.0),
            "pool 'p' permits priorities from 1 up to 5, not 9",
        ),
    ],
)
def test_a_pool_permits_some_priorities_only(limits, permitted, error):
    mesh = limited(**limits)
    for number, priority in enumerate(permitted):
        assert not isinstance(mesh.queue(f"t{number}", priority=priority, cpu=1), Refused)
    refused = mesh.queue("t", priority=9.0, cpu=1)
    assert (refused.reason, refused.error) == ("priority_not_permitted", error)
    assert mesh.dry("t", priority=9.0, cpu=1).reason == "priority_not_permitted"
    assert mesh.change("t0", priority=9.0).reason == "priority_not_permitted"


def test_what_waits_or_runs_keeps_the_priority_that_its_pool_permits_no_more():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.queue("runs", priority=9.0, cpu=4, class_key="c", on_preempted="requeue")
    mesh.report("runs")
    mesh.queue("waits", priority=9.0, cpu=4)
    mesh.resize(msgspec.structs.replace(pool("p", cpu=4), max_priority=1.0))
    mesh.preempt(agent_name="runs", end_agent=True)
    mesh.leave("runs", saved=True)
    assert "runs" in mesh.starts
    mesh.report("runs")
    mesh.complete("runs")
    assert "waits" in mesh.starts
    assert is_stored(mesh)


def test_an_own_class_of_the_policy_is_said_and_outlives_a_restart():
    mesh = Mesh(pool("p", cpu=1), nodes=[node("n", cpu=1)])
    mesh.policy(priority_classes={"nightly": 0.3, "urgent": 8})
    mesh.run("a", cpu=1)
    mesh.queue("b", priority=8.0, cpu=1, more={"may_preempt": False})
    told = mesh.engine.explain("b", mesh.now)
    assert told.own_class == "urgent"
    assert [str(each.detail_text) for each in told.order if each.factor == "priority"] == [
        "class urgent"
    ]
    for twin in (mesh.refolded(), mesh.rewritten()):
        assert list(twin.policy.priority_classes) == ["urgent", "nightly"]
