"""First tasks that have become impossible wait, or are cancelled with the reason, as the policy says."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.queue_facts import ImpossibilityNoted
from tests.engine.builders import Mesh, differences, node, pool, shape

BIG, SMALL = node("big", cpu=8), node("small", cpu=2)


def strict(name="p", **quota):
    return msgspec.structs.replace(pool(name, **quota), queueing="strict")


def with_impossible(spec=strict, **policy):
    """The first task, of 6 CPUs, waits for a node that has left; a task of one CPU waits behind it."""
    mesh = Mesh(spec("p", cpu=8), nodes=[BIG, SMALL])
    mesh.order_by(**policy)
    mesh.run("busy", cpu=6)
    mesh.queue("large", cpu=6)
    mesh.queue("behind", cpu=1)
    mesh.observe(SMALL)
    mesh.die("busy")
    mesh.tick(5.0)
    assert mesh.waiting() == ["large", "behind"]
    return mesh


@pytest.fixture
def mesh():
    return with_impossible(on_impossible="cancel", impossible_after_s=60.0)


def noted(mesh):
    return [(f.task_id, f.since) for f in mesh.facts if isinstance(f, ImpossibilityNoted)]


def test_by_default_it_waits_for_its_node():
    mesh = with_impossible()
    mesh.tick(1e6)
    assert mesh.waiting() == ["large", "behind"]
    assert noted(mesh) == []


def test_it_is_cancelled_with_its_reason_after_that_time(mesh):
    since = mesh.now
    mesh.tick(59.0)
    assert mesh.waiting() == ["large", "behind"]
    mesh.tick(1.0)
    past = mesh.state.ended["large"]
    assert (past.state, past.reason) == (EndState.CANCELLED, "impossible")
    assert "could not have started for 60 s even if nothing else ran (" in past.error
    assert "on_impossible is 'cancel'" in past.error
    assert list(mesh.starts) == ["behind"]
    assert noted(mesh) == [("large", since)]
    assert mesh.state.queue.impossible == {}
    assert differences(mesh.state, mesh.refolded()) == []


def test_a_node_that_is_away_for_a_moment_changes_nothing(mesh):
    mesh.tick(50.0)
    mesh.observe(node("big", cpu=4, others=node("x", cpu=2).total), SMALL)
    mesh.tick(1.0)
    assert mesh.waiting() == ["large", "behind"]
    mesh.observe(BIG, SMALL)
    mesh.tick(1.0)
    assert "large" in mesh.starts
    mesh.tick(100.0)
    assert "large" not in mesh.state.ended


def test_the_time_begins_again_when_it_was_possible_meanwhile(mesh):
    mesh.tick(50.0)
    mesh.handle(s.CordonRequested(node_id="small", cordoned=True))
    mesh.observe(node("big", cpu=8, others=node("x", cpu=8).total), SMALL)
    mesh.tick(1.0)
    assert noted(mesh)[-1] == ("large", None)
    mesh.observe(SMALL)
    mesh.tick(1.0)
    mesh.tick(59.0)
    assert "large" in mesh.waiting()
    mesh.tick(1.0)
    assert "large" in mesh.state.ended


def test_the_state_is_stored(mesh):
    assert mesh.state.queue.by_id["large"].impossible_since == mesh.now
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    assert mesh.rewritten().queue.impossible == {"large": None}


def test_a_restart_of_the_supervisor_begins_the_time_anew(mesh):
    mesh.tick(59.0)
    mesh.handle(s.RecoveryObserved(living=frozenset(), groups=frozenset()))
    assert noted(mesh)[-1] == ("large", mesh.now)
    mesh.tick(59.0)
    assert "large" in mesh.waiting()
    mesh.tick(1.0)
    assert "large" in mesh.state.ended


def test_explain_says_when_it_is_cancelled(mesh):
    mesh.tick(20.0)
    explained = mesh.engine.explain("large", mesh.now)
    assert explained.reason == "cluster_out_of_resources"
    assert (
        "it is cancelled in 40 s unless that changes (on_impossible is 'cancel')" in explained.hint
    )


def test_what_its_pool_cannot_hold_any_more_is_cancelled_with_all_that_ask_for_the_same():
    mesh = Mesh(strict(cpu=8), nodes=[BIG])
    mesh.order_by(on_impossible="cancel", impossible_after_s=60.0)
    mesh.run("busy", cpu=4)
    for name in ("first", "second", "third"):
        mesh.queue(name, cpu=7)
    mesh.queue("other", cpu=8)
    mesh.change("second", held=True)
    mesh.resize(strict(cpu=4))
    mesh.tick(1.0)
    assert noted(mesh) == [("first", mesh.now), ("other", mesh.now)]
    mesh.tick(60.0)
    assert mesh.waiting() == ["second"]
    assert {name: past.reason for name, past in mesh.state.ended.items()} == dict.fromkeys(
        ("first", "third", "other"), "impossible"
    )


def test_a_task_behind_one_that_is_possible_is_left_alone():
    mesh = Mesh(pool("p", cpu=8), nodes=[BIG])
    mesh.order_by(on_impossible="cancel", impossible_after_s=0.0)
    mesh.run("busy", cpu=6, priority=9.0)
    mesh.queue("first", cpu=3, priority=9.0)
    mesh.queue("large", cpu=8)
    mesh.resize(pool("p", cpu=7))
    mesh.tick(1.0)
    mesh.tick(1.0)
    assert mesh.waiting() == ["first", "large"]


def test_nothing_is_cancelled_in_a_pool_that_is_drained(mesh):
    mesh.handle(s.DrainRequested(pool_name="p", drained=True, client="host:1"))
    mesh.tick(100.0)
    assert mesh.waiting() == ["large", "behind"]


def test_a_gang_for_whose_members_nodes_are_missing_is_cancelled():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.order_by(on_impossible="cancel", impossible_after_s=60.0)
    mesh.run("busy", cpu=4)
    mesh.queue("g", bundles=[{"cpu": 4}] * 2, payload=GangPayload(strategy="STRICT_SPREAD"))
    mesh.observe(node("a", cpu=4))
    mesh.tick(1.0)
    mesh.tick(60.0)
    assert mesh.state.ended["g"].reason == "impossible"


def test_what_a_pool_keeps_no_placement_groups_for_any_more_is_cancelled_and_refused():
    mesh = Mesh(pool("p", cpu=4, groups=GroupsSpec(max_dynamic=1)), nodes=[BIG])
    mesh.order_by(on_impossible="cancel", impossible_after_s=60.0)
    mesh.submit("busy", cpu=4)
    mesh.make_all()
    mesh.report("busy")
    mesh.queue("waits", cpu=2)
    mesh.resize(pool("p", cpu=4, groups=GroupsSpec(max_dynamic=0)))
    mesh.tick(1.0)
    mesh.tick(60.0)
    past = mesh.state.ended["waits"]
    assert past.reason == "impossible"
    assert "of at most 0 dynamic ones are there" in past.error
    assert mesh.queue("late", cpu=2).reason is Reason.GROUP_UNPLACEABLE


def test_what_needs_a_reserved_group_is_cancelled_when_its_nodes_are_gone():
    groups = GroupsSpec(reserved=(shape({"cpu": 6}),), dynamic=False, entitled_above=0.0)
    mesh = Mesh(pool("p", cpu=8, groups=groups), nodes=[BIG, SMALL])
    mesh.order_by(on_impossible="cancel", impossible_after_s=60.0)
    mesh.make_all()
    mesh.run("busy", cpu=6)
    mesh.queue("waits", cpu=6)
    mesh.observe(SMALL)
    mesh.tick(1.0)
    mesh.tick(60.0)
    assert mesh.state.ended["waits"].reason == "impossible"


def test_whoever_waits_for_it_to_run_is_refused():
    mesh = Mesh(strict(cpu=8), nodes=[BIG])
    mesh.order_by(on_impossible="cancel", impossible_after_s=0.0)
    mesh.run("busy", cpu=4)
    mesh.queue("large", cpu=8, more={"queue": True, "until_runs": True, "request_id": "r"})
    mesh.resize(strict(cpu=4))
    mesh.tick(1.0)
    mesh.tick(1.0)
    assert mesh.state.answers["r"].outcome.reason == "impossible"


def test_the_policy_may_be_changed_back(mesh):
    mesh.order_by(on_impossible="skip")
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["large"].impossible_since is None
    mesh.tick(1e6)
    assert mesh.waiting() == ["large", "behind"]


def test_a_restart_does_not_change_in_which_order_tasks_are_noted():
    mesh = Mesh(*(pool(name, cpu=4) for name in "abc"))
    mesh.order_by(on_impossible="cancel", impossible_after_s=60.0)
    for number, name in enumerate("abc"):
        mesh.run(f"busy-{name}", name, cpu=4)
        mesh.queue(f"waits-{name}", name, cpu=4, priority=float(number))
    mesh.queue("last", "a", cpu=4)
    mesh.cancel("waits-a")
    for name in "abc":
        mesh.resize(pool(name, cpu=3))
    twin = Engine(mesh.rewritten())
    step = mesh.tick(1.0)
    assert [f.task_id for f in step.facts if isinstance(f, ImpossibilityNoted)]
    assert twin.handle(s.ClockTicked(), mesh.now) == step
