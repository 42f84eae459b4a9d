"""Preemption by attained service: ``las_preempts`` with the orders of two levels and of several."""

import pytest

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from tests.engine.builders import Mesh, node, pool

HOUR = 3600.0


def mesh(*pools, nodes=(), **policy):
    """A mesh whose second level begins with 8 GPU-hours."""
    found = Mesh(*(pools or [pool("p", gpu=8)]), nodes=nodes or [node("n", gpu=8)], **policy)
    found.order_by(order="two_level_las", las_preempts=True)
    return found


def run(mesh, name, pool_name="p", gpu=8, *, savable=True, **how):
    """A task that runs from now on."""
    more = {"class_key": "c", "on_preempted": "requeue", **how}
    mesh.queue(name, pool_name, gpu=gpu, **more)
    mesh.report(name, capabilities=("save_state",) if savable else ())


def pass_time(mesh, seconds):
    mesh.now += seconds
    mesh.handle(s.ClockTicked())


def test_a_task_with_little_service_evicts_one_with_much():
    m = mesh()
    run(m, "long")
    m.queue("short", gpu=1)
    pass_time(m, HOUR - 1)
    assert m.ends == {}
    pass_time(m, 2)
    assert list(m.ends) == ["long"]
    (fact,) = (fact for fact in m.facts if isinstance(fact, f.EvictionStarted))
    assert fact.reason is PreemptionReason.ATTAINED_SERVICE
    m.leave("long", saved=True)
    m.report("short")
    assert m.waiting() == ["long"]


def test_the_evicted_task_evicts_nobody():
    m = mesh()
    run(m, "long")
    pass_time(m, HOUR)
    run_after_eviction(m, "other", "long")
    pass_time(m, 2 * HOUR)
    assert (m.ends, m.waiting()) == ({}, ["long"])


def run_after_eviction(m, name, victim):
    m.queue(name, gpu=8, class_key="c", on_preempted="requeue")
    m.leave(victim, saved=True)
    m.report(name, capabilities=("save_state",))


def test_the_service_of_earlier_attempts_counts():
    m = mesh()
    run(m, "long", gpu=4)
    run(m, "other", gpu=4)
    pass_time(m, 2 * HOUR)
    m.queue("first", gpu=8, class_key="c")
    m.leave("long", saved=True)
    m.leave("other", saved=True)
    m.report("first")
    m.complete("first")
    assert m.state.queue.by_id == {}
    m.report("long")
    assert m.state.running.by_id["long"].gpu_s(m.now) == 8 * HOUR


@pytest.mark.parametrize("setting", ["order", "las_preempts"])
def test_without_one_of_the_settings_nobody_is_evicted(setting):
    m = mesh()
    m.order_by(**{setting: {"order": "fifo", "las_preempts": False}[setting]})
    run(m, "long")
    m.queue("short", gpu=1)
    pass_time(m, 2 * HOUR)
    assert m.ends == {}


def test_a_task_that_nobody_can_save_keeps_its_resources():
    m = mesh()
    run(m, "long", savable=False)
    m.queue("short", gpu=1)
    pass_time(m, 2 * HOUR)
    assert m.ends == {}


def test_a_task_that_would_not_return_keeps_its_resources():
    m = mesh()
    run(m, "long", on_preempted="drop")
    m.queue("short", gpu=1)
    pass_time(m, 2 * HOUR)
    assert m.ends == {}


def test_a_pool_that_saves_states_saves_for_its_agents():
    m = mesh()
    m.handle(s.StateHandlersGiven(pool_name="p", preserver_key="save", restorer_key=None))
    run(m, "long", savable=False)
    m.queue("short", gpu=1)
    pass_time(m, 2 * HOUR)
    assert list(m.ends) == ["long"]


def test_the_one_that_has_used_most_is_evicted():
    m = mesh(pool("p", gpu=16), nodes=[node("n", gpu=8), node("o", gpu=8)])
    run(m, "large")
    run(m, "half", gpu=4)
    run(m, "other half", gpu=4)
    m.queue("short", gpu=2)
    pass_time(m, 3 * HOUR)
    assert list(m.ends) == ["large"]


def test_what_was_evicted_least_often_is_evicted_first():
    m = mesh(pool("p", gpu=8))
    run(m, "first", gpu=4)
    run(m, "second", gpu=4)
    pass_time(m, 3 * HOUR)
    m.queue("short", gpu=4)
    assert list(m.ends) == ["first"]
    m.leave("first", saved=True)
    m.report("short")
    m.complete("short")
    m.report("first")
    pass_time(m, 10)
    m.queue("another", gpu=4)
    assert list(m.ends) == ["second"]


def test_what_was_evicted_as_often_as_it_may_be_stays():
    m = mesh(max_preemptions=1)
    run(m, "long")
    pass_time(m, 2 * HOUR)
    m.queue("short", gpu=8)
    m.leave("long", saved=True)
    m.report("short")
    m.complete("short")
    m.report("long", capabilities=("save_state",))
    m.queue("another", gpu=8)
    pass_time(m, HOUR)
    assert m.ends == {}


def two_pools():
    return [
        pool("p", gpu=8, lending={"cohort": "all"}),
        pool("q", gpu=8, lending={"cohort": "all"}),
        pool("r", gpu=8, lending={"cohort": "all"}),
    ]


def test_another_pools_own_quota_is_not_touched_and_its_loans_are():
    nodes = [node("n", gpu=8), node("o", gpu=8), node("x", gpu=8)]
    m = mesh(*two_pools(), nodes=nodes)
    run(m, "own", "q")
    run(m, "mine", "p", savable=False)
    m.queue("short", "p", gpu=8)
    assert m.starts.pop("short")
    m = mesh(*two_pools(), nodes=nodes)
    run(m, "own", "q")
    run(m, "borrower", "q")
    run(m, "mine", "p", savable=False)
    m.queue("short", "p", gpu=8)
    pass_time(m, 2 * HOUR)
    assert list(m.ends) == ["borrower"]


def promoting_mesh(after_s):
    m = mesh()
    m.order_by(order="two_level_las", las_preempts=True, promote_after_s=after_s)
    return m


def in_turn_after_a_long_wait():
    """ "long" has waited for two hours, has evicted "other", and runs."""
    m = promoting_mesh(2 * HOUR)
    run(m, "long")
    pass_time(m, HOUR)
    run_after_eviction(m, "other", "long")
    pass_time(m, 2 * HOUR - 1)
    assert (m.ends, m.waiting()) == ({}, ["long"])
    pass_time(m, 1)
    assert list(m.ends) == ["other"]
    m.leave("other", saved=True)
    m.report("long", capabilities=("save_state",))
    return m


def test_a_task_that_has_waited_for_long_evicts_like_one_of_the_first_level():
    m = in_turn_after_a_long_wait()
    assert m.waiting() == ["other"]


def test_a_task_that_has_waited_for_long_runs_for_as_long_before_it_is_evicted_by_the_order():
    m = in_turn_after_a_long_wait()
    m.queue("short", gpu=1)
    pass_time(m, 2 * HOUR - 1)
    assert (m.ends, m.waiting()) == ({}, ["short", "other"])
    pass_time(m, 1)
    assert list(m.ends) == ["long"]
    m.leave("long", saved=True)
    m.report("other", capabilities=("save_state",))
    assert m.waiting() == ["short", "long"]


def test_a_task_that_was_moved_to_the_front_evicts_nobody_for_that():
    m = promoting_mesh(10 * HOUR)
    run(m, "long")
    pass_time(m, HOUR)
    run_after_eviction(m, "other", "long")
    pass_time(m, 2 * HOUR)
    m.change("long", to_front=True)
    pass_time(m, 1)
    assert (m.ends, m.waiting()) == ({}, ["long"])
