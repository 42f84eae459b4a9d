"""What estimates change in the queue where the policy lets them count: the order, and reserved starts."""

from __future__ import annotations

import pytest

from tests.engine.builders import Mesh, differences, node, pool

#: Times of three earlier runs.
SHORT, LONG = (100.0, 100.0, 100.0), (1000.0, 1000.0, 1000.0)


def ran(mesh, name, times, **how):
    """Tasks with names like this one ran for these times."""
    for number, seconds in enumerate(times, 100):
        mesh.run(f"{name}-{number}", **{"cpu": 1, "priority": 9.0, **how})
        mesh.now += seconds
        mesh.complete(f"{name}-{number}")


def mesh_of(cpu=4, **policy):
    """A pool of four CPUs in which short and long tasks ran before."""
    mesh = Mesh(pool("p", cpu=cpu), nodes=[node("n1", cpu=cpu)])
    ran(mesh, "short", SHORT)
    ran(mesh, "long", LONG)
    mesh.order_by(**{"estimates": True, **policy})
    return mesh


def check_stored(mesh):
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


# order


def test_the_shortest_by_earlier_runs_comes_first():
    mesh = mesh_of(order="shortest_remaining")
    mesh.run("busy", cpu=4)
    for name in ("new", "long-7", "short-7", "short-8"):
        mesh.queue(name, cpu=4 if name == "new" else 1)
    mesh.queue("declared", cpu=1, duration=150.0)
    assert mesh.waiting() == ["short-7", "short-8", "declared", "new", "long-7"]
    check_stored(mesh)


def test_an_estimate_that_is_switched_off_does_not_count():
    mesh = mesh_of(order="shortest_remaining")
    mesh.run("busy", cpu=4)
    for name in ("long-7", "short-7"):
        mesh.queue(name, cpu=1)
    mesh.order_by(estimates=False)
    assert mesh.waiting() == ["long-7", "short-7"]
    mesh.order_by(estimates=True)
    mesh.tick()
    assert mesh.waiting() == ["short-7", "long-7"]
    check_stored(mesh)


def test_waiting_tasks_change_places_when_runs_of_their_kind_have_ended():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=4)])
    mesh.order_by(order="shortest_remaining", estimates=True)
    mesh.run("busy", cpu=3)
    mesh.run("short-0", cpu=1)
    for name in ("other", "short-4", "short-5"):
        mesh.queue(name, cpu=4)
    assert mesh.waiting() == ["other", "short-4", "short-5"]
    mesh.now += 10
    mesh.complete("short-0")
    ran(mesh, "short", (10.0, 10.0, 10.0), cpu=1, owner="")
    mesh.tick()
    assert mesh.waiting() == ["other", "short-4", "short-5"]
    ran(mesh, "short", (10.0, 10.0, 10.0), cpu=1)
    mesh.complete("busy")
    check_stored(mesh)


def test_those_of_a_kind_come_in_the_order_of_their_arrival():
    mesh = mesh_of(order="shortest_remaining")
    mesh.run("busy", cpu=3)
    mesh.queue("short-7", cpu=2)
    ran(mesh, "short", (50.0,))
    mesh.queue("short-8", cpu=2)
    assert mesh.waiting() == ["short-7", "short-8"]
    mesh.tick()
    assert mesh.waiting() == ["short-7", "short-8"]
    values = {task.estimate_s for task in mesh.state.queue.by_id.values()}
    assert len(values) == 1
    check_stored(mesh)


def test_an_estimate_is_a_fact_only_where_it_differs_much():
    mesh = mesh_of(order="shortest_remaining")
    mesh.run("busy", cpu=4)
    mesh.queue("short-7", cpu=1)
    mesh.change("short-7", held=True)
    mesh.complete("busy")
    seen = mesh.told_facts("QueuedTasksEstimated")
    ran(mesh, "short", (101.0,))
    mesh.tick()
    assert mesh.told_facts("QueuedTasksEstimated") == seen
    ran(mesh, "short", (500.0,) * 20)
    mesh.tick()
    assert len(mesh.told_facts("QueuedTasksEstimated")) == len(seen) + 1
    assert mesh.state.queue.by_id["short-7"].estimate_s == 500.0


def test_a_task_that_returns_after_an_eviction_has_the_rest_to_run():
    mesh = mesh_of(order="shortest_remaining")
    mesh.queue("long-7", cpu=1, class_key="k", on_preempted="requeue")
    mesh.report("long-7")
    mesh.now += 950
    mesh.submit("urgent", priority=9.0, cpu=4)
    mesh.leave("long-7", saved=True)
    mesh.queue("short-7", cpu=1)
    mesh.tick()
    assert mesh.waiting() == ["long-7", "short-7"]
    check_stored(mesh)


# reserved starts


def reserved_at(mesh, task_id):
    return mesh.state.queue.by_id[task_id].reservation.at - mesh.now


@pytest.mark.parametrize(("estimates", "at"), [(True, 1000.0), (False, None)])
def test_a_start_is_reserved_for_when_earlier_runs_say_that_there_is_room(estimates, at):
    mesh = mesh_of(estimates=estimates)
    mesh.run("long-7", cpu=1)
    mesh.queue("head", cpu=4)
    mesh.tick()
    reservation = mesh.state.queue.by_id["head"].reservation
    assert reservation.at == (None if at is None else mesh.now + at)
    check_stored(mesh)


def test_a_task_passes_if_runs_like_it_end_in_time():
    mesh = mesh_of()
    mesh.run("long-7", cpu=1)
    mesh.queue("head", cpu=4)
    mesh.tick()
    assert mesh.queue("short-7", cpu=1).position == 0
    mesh.now += 5
    assert mesh.queue("long-8", cpu=1).position == 2


def test_a_declared_duration_counts_more_than_an_estimate():
    mesh = mesh_of()
    mesh.run("long-7", cpu=1, duration=50.0)
    mesh.queue("head", cpu=4)
    mesh.tick()
    assert reserved_at(mesh, "head") == 50.0
    assert mesh.queue("short-7", cpu=1, duration=60.0).position == 2
    assert mesh.queue("long-8", cpu=0.5, duration=40.0).position == 0


def test_a_reserved_start_slips_where_a_task_outlives_its_estimate():
    mesh = mesh_of()
    mesh.run("short-7", cpu=1)
    mesh.queue("head", cpu=4)
    mesh.tick()
    assert reserved_at(mesh, "head") == 100.0
    mesh.tick(100.0)
    assert reserved_at(mesh, "head") == 100.0
    assert mesh.state.queue.by_id["head"].reservation.first_at == mesh.now
    mesh.tick(100.0)
    assert reserved_at(mesh, "head") == 200.0
    check_stored(mesh)


def test_the_head_is_not_put_off_for_ever():
    mesh = mesh_of(backfill_limit_s=300.0)
    mesh.run("short-7", cpu=1)
    mesh.queue("head", cpu=4)
    mesh.tick()
    first_at = mesh.state.queue.by_id["head"].reservation.first_at
    mesh.now = first_at + 200.0
    mesh.tick()
    assert mesh.queue("short-8", cpu=1).position == 0
    mesh.report("short-8")
    mesh.now = first_at + 301.0
    mesh.tick()
    assert mesh.state.queue.by_id["head"].reservation.at is None
    assert mesh.queue("short-9", cpu=1).position == 2
    for name in ("short-7", "short-8"):
        mesh.complete(name)
    assert list(mesh.starts) == ["head"]
    check_stored(mesh)
