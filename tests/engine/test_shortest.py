"""Preemption by remaining time, with the orders by remaining time and ``shortest_preempts``."""

import pytest

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from tests.engine.builders import Mesh, node, pool


def mesh(order="shortest_remaining", **policy):
    found = Mesh(pool("p", gpu=8), nodes=[node("n", gpu=8)], **policy)
    found.order_by(order=order, shortest_preempts=True)
    return found


def run(mesh, name, duration=None, gpu=8, *, savable=True, **how):
    """A task that runs from now on."""
    mesh.queue(
        name, gpu=gpu, duration=duration, class_key="c", **{"on_preempted": "requeue", **how}
    )
    mesh.report(name, capabilities=("save_state",) if savable else ())


def pass_time(mesh, seconds):
    mesh.now += seconds
    mesh.handle(s.ClockTicked())


def test_a_task_evicts_one_that_has_more_left():
    m = mesh()
    run(m, "long", 100)
    m.queue("short", gpu=1, duration=99)
    assert list(m.ends) == ["long"]
    (fact,) = (fact for fact in m.facts if isinstance(fact, f.EvictionStarted))
    assert fact.reason is PreemptionReason.MORE_LEFT


def test_what_counts_is_what_is_left_and_not_the_duration():
    m = mesh()
    run(m, "long", 100)
    pass_time(m, 60)
    m.queue("other", gpu=1, duration=40)
    m.queue("short", gpu=1, duration=39)
    assert list(m.ends) == ["long"]
    m.leave("long", saved=True)
    m.report("short")
    # 40 s are left of both that wait.
    assert m.waiting() == ["long", "other"]


def test_the_evicted_task_evicts_nobody_that_comes_before_it():
    m = mesh()
    run(m, "long", 100)
    m.queue("short", gpu=8, duration=50, class_key="c", on_preempted="requeue")
    m.leave("long", saved=True)
    m.report("short", capabilities=("save_state",))
    pass_time(m, 10)
    assert (m.ends, m.waiting()) == ({}, ["long"])


def test_those_with_most_left_are_evicted_first():
    m = mesh()
    run(m, "longer", 300, gpu=4)
    run(m, "long", 200, gpu=4)
    m.queue("short", gpu=4, duration=100)
    assert list(m.ends) == ["longer"]


def test_by_service_time_counts_for_each_gpu():
    m = mesh("shortest_service")
    run(m, "wide", 100, gpu=6)
    run(m, "narrow", 200, gpu=2)
    m.queue("middle", gpu=2, duration=250)
    assert list(m.ends) == ["wide"]
    m.leave("wide", saved=True)
    m.report("middle")
    m.queue("less", gpu=8, duration=60)
    assert m.waiting() == ["less", "wide"]


def test_a_task_without_an_estimate_counts_as_the_longest():
    m = mesh()
    run(m, "unknown")
    m.queue("also unknown", gpu=8)
    assert m.ends == {}
    m.queue("known", gpu=8, duration=1e6)
    assert list(m.ends) == ["unknown"]


@pytest.mark.parametrize("setting", [{"order": "fifo"}, {"shortest_preempts": False}])
def test_without_one_of_the_settings_nobody_is_evicted(setting):
    m = mesh()
    m.order_by(**setting)
    run(m, "long", 100)
    m.queue("short", gpu=1, duration=10)
    assert m.ends == {}


@pytest.mark.parametrize("how", [{"savable": False}, {"on_preempted": "drop"}])
def test_a_task_that_would_lose_its_work_keeps_its_resources(how):
    m = mesh()
    run(m, "long", 100, **how)
    m.queue("short", gpu=1, duration=10)
    assert m.ends == {}


def test_a_task_is_evicted_as_often_as_it_may_be():
    m = mesh(max_preemptions=1)
    run(m, "long", 1000)
    m.queue("short", gpu=8, duration=10, class_key="c")
    m.leave("long", saved=True)
    m.report("short")
    m.complete("short")
    m.report("long", capabilities=("save_state",))
    m.queue("another", gpu=8, duration=10)
    pass_time(m, 60)
    assert m.ends == {}


def test_a_task_that_has_waited_for_long_evicts_a_shorter_one_and_runs_for_as_long():
    m = mesh()
    m.order_by(order="shortest_remaining", shortest_preempts=True, promote_after_s=50.0)
    run(m, "short", 90)
    m.queue("long", gpu=8, duration=1000, class_key="c", on_preempted="requeue")
    pass_time(m, 49)
    assert m.ends == {}
    pass_time(m, 1)
    assert list(m.ends) == ["short"]
    m.leave("short", saved=True)
    m.report("long", capabilities=("save_state",))
    pass_time(m, 49)
    assert (m.ends, m.waiting()) == ({}, ["short"])
    pass_time(m, 1)
    assert list(m.ends) == ["long"]
