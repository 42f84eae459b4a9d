"""A task that waits for its next attempt keeps its place, and one that was lost does not wait."""

from __future__ import annotations

import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from tests.engine.builders import Mesh, differences, node, pool, shape


def full(queueing="best_effort", **how):
    """Task ``t`` runs and has retries; ``next`` waits for its place."""
    lending = {"queueing": queueing} if queueing != "best_effort" else None
    mesh = Mesh(pool("p", cpu=2, lending=lending), nodes=[node("a", cpu=2)])
    mesh.run("t", cpu=2, run="train", class_key="c", **{"retries": 3, **how})
    mesh.queue("next", cpu=2, priority=how.get("priority", 5.0), class_key="c")
    mesh.now += 20.0
    return mesh


def fail(mesh, task_id):
    mesh.run_ends(task_id, reason=TaskEndReason.RUN_RAISED, error="boom")
    mesh.leave(task_id)


@pytest.mark.parametrize("queueing", ["best_effort", "strict", "greedy"])
def test_the_place_is_kept_while_the_task_waits_its_back_off(queueing):
    mesh = full(queueing)
    fail(mesh, "t")
    assert not mesh.starts
    mesh.tick(0.5)
    assert not mesh.starts
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.tick(0.6)
    assert list(mesh.starts) == ["t"]
    assert not mesh.state.preempted


def test_a_task_of_higher_priority_takes_the_place():
    mesh = full()
    fail(mesh, "t")
    mesh.queue("urgent", cpu=2, priority=9.0, class_key="c")
    assert list(mesh.starts) == ["urgent"]


def test_a_task_that_is_over_by_then_passes():
    mesh = full()
    fail(mesh, "t")
    mesh.queue("short", cpu=2, duration=0.5, class_key="c")
    assert list(mesh.starts) == ["short"]


def test_a_submission_without_the_queue_does_not_take_the_place():
    mesh = full()
    fail(mesh, "t")
    assert mesh.submit("other", cpu=2, class_key="c").reason == "held_for_queue"


def test_after_many_failures_the_wait_is_long_and_the_place_is_not_kept():
    mesh = full(retries=9)
    mesh.cancel("next")
    for wait in (1.0, 2.0, 4.0, 8.0):
        fail(mesh, "t")
        mesh.tick(wait)
        mesh.report("t")
    mesh.queue("next", cpu=2, class_key="c")
    fail(mesh, "t")
    assert list(mesh.starts) == ["next"], "the other one waits 16 seconds"


def test_a_lost_task_does_not_wait():
    mesh = full()
    mesh.die("t")
    assert list(mesh.starts) == ["t"]


def test_a_task_that_dies_again_and_again_waits():
    mesh = full()
    mesh.die("t")
    mesh.report("t")
    mesh.die("t")
    assert not mesh.starts
    mesh.tick(2.0)
    assert list(mesh.starts) == ["t"]


def test_priorities_hold_where_ray_had_no_room_for_a_moment():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("before", cpu=4, priority=20.0, class_key="c")
    mesh.queue("nine", cpu=4, priority=9.0, class_key="c")
    mesh.queue("five", cpu=4, priority=5.0, class_key="c")
    mesh.complete("before")
    assert list(mesh.starts) == ["nine"]
    mesh.fail("nine", "cluster_out_of_resources")
    assert not mesh.starts
    mesh.tick(1.0)
    assert not mesh.starts
    mesh.tick(1.0)
    assert list(mesh.starts) == ["nine"]


def test_a_gang_keeps_the_nodes_of_all_its_members():
    nodes = [node("a", cpu=2), node("b", cpu=2)]
    mesh = Mesh(pool("p", cpu=4), nodes=nodes)
    bundles = [{"cpu": 2}, {"cpu": 2}]
    mesh.submit(
        "gang", bundles=bundles, payload=GangPayload(), class_key="c", run="train", retries=2
    )
    mesh.make_all()
    mesh.report("gang")
    mesh.queue("small", cpu=2, class_key="c")
    fail(mesh, "gang")
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.tick(0.5)
    assert not mesh.starts
    assert not mesh.makes
    mesh.tick(1.0)
    mesh.make_all()
    assert list(mesh.starts) == ["gang"]


@pytest.mark.parametrize(
    "groups",
    [
        GroupsSpec(reserved=(shape({"cpu": 2}),), max_dynamic=0),
        GroupsSpec(reserved=(shape({"cpu": 2}),), max_dynamic=3),
        GroupsSpec(max_dynamic=1),
        GroupsSpec(max_dynamic=3),
    ],
    ids=["reserved", "reserved or dynamic", "the only dynamic one", "dynamic"],
)
def test_the_placement_group_is_kept_while_the_task_waits_its_back_off(groups):
    mesh = Mesh(pool("p", cpu=8, groups=groups), nodes=[node("a", cpu=2)])
    mesh.make_all()
    mesh.submit("t", cpu=2, run="train", class_key="c", retries=3, priority=9.0)
    mesh.make_all()
    mesh.report("t")
    mesh.queue("next", cpu=2, priority=6.0, class_key="c")
    mesh.now += 20.0
    fail(mesh, "t")
    mesh.tick(0.5)
    assert not mesh.starts
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.tick(0.6)
    assert list(mesh.starts) == ["t"]
    assert not mesh.state.preempted


def test_of_equal_placement_groups_one_is_kept_whichever_it_is():
    groups = GroupsSpec(reserved=(shape({"cpu": 2}), shape({"cpu": 2})), max_dynamic=0)
    mesh = Mesh(pool("p", cpu=8, groups=groups), nodes=[node("a", cpu=4)])
    mesh.make_all()
    mesh.run("t", cpu=2, run="train", class_key="c", retries=3, priority=9.0)
    mesh.now += 20.0
    fail(mesh, "t")
    mesh.queue("first", cpu=2, priority=6.0, class_key="c")
    mesh.queue("second", cpu=2, priority=6.0, class_key="c")
    assert list(mesh.starts) == ["first"]
    mesh.tick(1.2)
    assert list(mesh.starts) == ["first", "t"]
    assert not mesh.state.preempted


def lent(**how):
    """Task ``t`` has all of its pool's quota, and ``next`` of another pool waits to borrow."""
    lending = {"cohort": "c"}
    pools = [pool("p", cpu=2, lending=lending), pool("q", cpu=2, lending=lending)]
    mesh = Mesh(*pools, nodes=[node("a", cpu=6)])
    mesh.run("t", cpu=2, run="train", class_key="c", **{"retries": 3, **how})
    mesh.run("all", "q", cpu=2, class_key="c")
    mesh.queue("next", "q", cpu=2, class_key="c")
    mesh.now += 20.0
    mesh.tick(1.0)
    assert not mesh.starts
    return mesh


def test_nobody_borrows_the_quota_while_the_task_waits_its_back_off():
    mesh = lent()
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="boom")
    mesh.tick(1.0)
    assert "next" in mesh.waiting("q"), "what is leaving comes back"
    mesh.leave("t")
    mesh.tick(0.5)
    assert not mesh.starts
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.tick(0.6)
    assert list(mesh.starts) == ["t"]
    assert not mesh.ends
    assert not mesh.state.ledger.holds


@pytest.mark.parametrize("ends", ["it is cancelled", "it has no retries left", "its wait is long"])
def test_the_quota_is_lent_where_the_task_does_not_come_back_soon(ends):
    mesh = lent(retries=0 if ends == "it has no retries left" else 9)
    for wait in (1.0, 2.0, 4.0, 8.0) if ends == "its wait is long" else ():
        fail(mesh, "t")
        mesh.tick(wait)
        mesh.report("t")
    fail(mesh, "t") if ends != "it has no retries left" else mesh.die("t")
    if ends == "it is cancelled":
        assert not mesh.starts
        mesh.cancel("t")
        assert not mesh.state.ledger.holds
        mesh.tick(0.1)
    assert list(mesh.starts) == ["next"]


@pytest.mark.parametrize(("priority", "claims"), [(1.0, False), (5.0, False), (9.0, True)])
def test_who_comes_later_claims_nothing_of_a_task_that_comes_back(priority, claims):
    mesh = full()
    mesh.cancel("next")
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="boom")
    mesh.submit("other", cpu=2, priority=priority, class_key="c")
    assert ("other" in mesh.state.agents) is claims
    mesh.leave("t")
    mesh.tick(1.1)
    assert list(mesh.starts) == ["other" if claims else "t"]
