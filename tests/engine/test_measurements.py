"""What is measured of agents changes who is evicted first, and when tasks are known to end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.config.policy import VICTIM_ORDERS
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.measurement_facts import EndMeasured, GpusBusy, GpusIdle
from schedulemesh.engine.state.invariants import check
from tests.engine.builders import Mesh, differences, names, node, pool

IDLE = {"idle_gpu_percent": 5.0}


def mesh_of(**policy):
    """Two pools of 4 GPUs, on one node of 8."""
    mesh = Mesh(
        pool("p", cpu=64, gpu=4), pool("q", cpu=64, gpu=4), nodes=[node("a", cpu=128, gpu=8)]
    )
    if policy:
        mesh.policy(**policy)
    return mesh


def full(*tasks, **policy):
    """As many tasks of one GPU and priority 1 in pool p."""
    mesh = mesh_of(**policy)
    for task in tasks:
        mesh.run(task, priority=1.0, cpu=1, gpu=1)
        mesh.tick(1.0)
    return mesh


def measured(mesh, *idle, **ends):
    step = mesh.handle(
        s.AgentsMeasured(
            idle=tuple((name, mesh.now - 60.0) for name in idle),
            ends=tuple((name, mesh.now + left) for name, left in ends.items()),
        )
    )
    check(mesh.state)
    return step.facts


def victims(mesh, **how):
    return names(mesh.dry("high", priority=9.0, **{"cpu": 1, "gpu": 1, **how}).preempted)


# -- idle GPUs


def test_an_idle_agent_is_evicted_before_a_busy_one_of_the_same_priority():
    mesh = full("a", "b", "c", "d", **IDLE)
    assert victims(mesh) == ["d"]
    (fact,) = measured(mesh, "b")
    assert fact == GpusIdle(agent_name="b", since=mesh.now - 60.0, at=mesh.now)
    assert victims(mesh) == ["b"]
    assert set(victims(mesh, gpu=2)) == {"b", "d"}


@pytest.mark.parametrize("order", VICTIM_ORDERS)
def test_idle_comes_first_in_every_order_of_victims_that_leaves_priority_its_force(order):
    mesh = mesh_of(victim_order=order, **IDLE)
    for name, priority in (("low", 1.0), ("x", 2.0), ("y", 2.0), ("z", 2.0)):
        mesh.run(name, priority=priority, cpu=1, gpu=1)
        mesh.tick(1.0)
    measured(mesh, "x")
    first = ["low"] if order == "priority_first" else ["x"]
    assert victims(mesh) == first
    found = [candidate.task_id for candidate in mesh.evaluate(9.0).candidates]
    assert found[: found.index("x") + 1] == ([*first, "x"] if first == ["low"] else ["x"])


def test_nobody_is_evicted_who_might_not_be_otherwise():
    mesh = full("a", "b", "c", "d", **IDLE)
    measured(mesh, "a")
    refused = mesh.dry("same", priority=1.0, cpu=1, gpu=1)
    assert not refused.turned_away.keys() - {"below_same_pool_threshold"}
    mesh.policy(protected_pools=("p",))
    assert mesh.evaluate(9.0, pool_name="q").victims == ()


def test_what_is_used_again_is_busy():
    mesh = full("a", "b", "c", "d", **IDLE)
    measured(mesh, "a", "b")
    assert measured(mesh, "a", "b") == ()
    assert measured(mesh, "b") == (GpusBusy(agent_name="a", at=mesh.now),)
    assert victims(mesh) == ["b"]


def test_without_the_policy_nothing_is_idle():
    mesh = full("a", "b", "c", "d")
    assert measured(mesh, "a") == ()
    mesh.policy(**IDLE)
    measured(mesh, "a")
    mesh.policy(idle_gpu_percent=0.0)
    assert mesh.state.running.idle == {}
    assert victims(mesh) == ["d"]


def test_agents_without_gpus_and_unknown_ones_are_not_idle():
    mesh = mesh_of(**IDLE)
    mesh.run("cpu", priority=1.0, cpu=1)
    mesh.submit("starts", priority=1.0, cpu=1, gpu=1)
    assert measured(mesh, "cpu", "nobody", "starts") == ()


def test_idle_ends_with_its_agent_and_survives_a_restart():
    mesh = full("a", "b", "c", "d", **IDLE)
    measured(mesh, "a", "b")
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.die("a")
    assert list(mesh.state.running.idle) == ["b"]
    check(mesh.state)


def test_an_eviction_says_that_its_victim_was_idle():
    mesh = full("a", "b", "c", "d", **IDLE)
    measured(mesh, "b")
    running = mesh.engine.explain("b", mesh.now)
    assert running.idle_since == mesh.now - 60.0
    assert "its GPUs have been idle for 1m, so it is preferred as a victim" in running.detail
    mesh.submit("high", priority=9.0, cpu=1, gpu=1)
    told = mesh.engine.explain("b", mesh.now)
    assert told.eviction.idle_since == mesh.now - 60.0
    assert "first among victims as its GPUs were idle" in told.error
    mesh.leave("b")
    assert mesh.engine.explain("b", mesh.now).eviction.idle_since is not None


def test_an_eviction_by_request_does_not():
    mesh = full("a", "b", "c", "d", **IDLE)
    measured(mesh, "b")
    mesh.preempt(task_id="b")
    assert mesh.engine.explain("b", mesh.now).eviction.idle_since is None


@given(
    priorities=st.lists(st.integers(1, 12), min_size=4, max_size=4),
    idle=st.sets(st.sampled_from("abcd")),
    order=st.sampled_from(VICTIM_ORDERS),
    protected=st.booleans(),
    gpus=st.integers(1, 4),
)
@settings(deadline=None)
def test_idle_changes_only_the_order(priorities, idle, order, protected, gpus):
    """The same tasks may be evicted, quotas hold, and no busy one is a candidate before an idle one."""
    mesh = mesh_of(victim_order=order, protected_pools=("p",) if protected else (), **IDLE)
    for name, priority in zip("abcd", priorities, strict=True):
        mesh.run(name, priority=float(priority), cpu=1, gpu=1)
    by_priority = dict(zip("abcd", priorities, strict=True))
    before = mesh.evaluate(8.0)
    other = mesh.evaluate(20.0, pool_name="q")
    measured(mesh, *sorted(idle))
    after = mesh.evaluate(8.0)
    ids = [candidate.task_id for candidate in after.candidates]
    assert sorted(ids) == sorted(candidate.task_id for candidate in before.candidates)
    assert after.turned_away == before.turned_away
    found = mesh.evaluate(20.0, pool_name="q")
    assert bool(found.victims) == bool(other.victims)
    assert not (protected and found.victims)
    rank = [(by_priority[i] if order == "priority_first" else 0, i not in idle) for i in ids]
    assert rank == sorted(rank)
    mesh.submit("high", priority=8.0, cpu=1, gpu=gpus)
    check(mesh.state)
    assert differences(mesh.state, mesh.refolded()) == []


# -- measured ends


def running(mesh, task_id):
    return mesh.state.running.by_id[task_id]


def test_progress_replaces_the_estimate():
    mesh = mesh_of(measured_progress=True)
    mesh.run("t", priority=1.0, cpu=1, gpu=4, duration=1000.0)
    (fact,) = measured(mesh, t=100.0)
    assert fact == EndMeasured(task_id="t", ends_at=mesh.now + 100.0, at=mesh.now)
    assert running(mesh, "t").remaining(mesh.now) == 100.0
    told = mesh.engine.explain("t", mesh.now)
    assert (told.ends_at, told.end_measured) == (mesh.now + 100.0, True)
    assert "by the progress that it reports 1m40s are left" in told.detail
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.policy(measured_progress=False)
    assert running(mesh, "t").remaining(mesh.now) == 1000.0
    assert not mesh.engine.explain("t", mesh.now).end_measured


def test_only_what_differs_much_is_a_fact():
    mesh = mesh_of(measured_progress=True)
    mesh.run("t", priority=1.0, cpu=1, gpu=4)
    assert len(measured(mesh, t=1000.0)) == 1, "it had no estimate"
    assert measured(mesh, t=1050.0) == ()
    assert measured(mesh, t=995.0) == ()
    assert len(measured(mesh, t=1200.0)) == 1
    assert len(measured(mesh, t=5.0)) == 1
    assert measured(mesh, t=14.0) == ()
    mesh.tick(60.0)
    assert measured(mesh, t=-10.0) == (), "both have passed"
    assert measured(mesh, t=1e12, nobody=5.0) == ()


def test_without_the_policy_progress_changes_nothing():
    mesh = mesh_of()
    mesh.run("t", priority=1.0, cpu=1, gpu=4, duration=1000.0)
    assert measured(mesh, t=100.0) == ()


def test_a_measured_end_changes_what_may_be_filled_in_before_a_reserved_start():
    """The head of the queue gets its start from the end of "t". By its estimate that is far away, so a short
    task may run before it; by its progress it is near, so the same task would delay the head.
    """
    mesh = mesh_of(measured_progress=True)
    mesh.run("t", priority=5.0, cpu=1, gpu=3, duration=1000.0)
    mesh.queue("head", priority=5.0, cpu=1, gpu=4)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["head"].reservation.at == pytest.approx(mesh.now + 999.0)
    short = {"priority": 5.0, "cpu": 1, "gpu": 1, "duration": 500.0}
    assert mesh.dry("short", **short).task_id == "short"
    measured(mesh, t=60.0)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["head"].reservation.at == pytest.approx(mesh.now + 59.0)
    assert mesh.engine.explain("head", mesh.now).earliest_start == pytest.approx(mesh.now + 59.0)
    mesh.queue("short", **short)
    assert mesh.waiting() == ["head", "short"]
    mesh.tick(1.0)
    assert mesh.waiting() == ["head", "short"], "it would delay the head"
