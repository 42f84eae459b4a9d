"""What the executor reports of groups: made, not made, gone, lost with a node, or found after a restart."""

from __future__ import annotations

import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import (
    CreateGroup,
    RemoveGroup,
    StartAgent,
    StopAgent,
)
from schedulemesh.engine.state.agents import Ending, Waiting
from schedulemesh.engine.state.groups import GroupPhase
from tests.engine.builders import Mesh, node, pool, shape


def meshed(cpu=8, nodes=("a",), **spec):
    return Mesh(
        pool("p", cpu=20, groups=GroupsSpec(**{"max_dynamic": 4, **spec})),
        nodes=[node(name, cpu=cpu) for name in nodes],
    )


def slot(mesh, name, **how):
    mesh.submit(name, **{"cpu": 2, "class_key": "c", **how})
    mesh.make_all()
    return mesh.report(name)


def kinds(step):
    return [type(order) for order in step.instructions]


def test_a_group_that_is_made_starts_its_agent():
    mesh = meshed()
    mesh.submit("x", cpu=2)
    assert isinstance(mesh.state.agents["x"].phase, Waiting)
    step = mesh.make("p-pg-1")
    assert kinds(step) == [StartAgent]
    assert mesh.state.groups.by_id["p-pg-1"].phase is GroupPhase.READY


def test_a_group_that_is_made_when_nobody_wants_it_any_more_is_kept_or_goes():
    for reuse, kept in ((True, True), (False, False)):
        mesh = meshed(reuse=reuse)
        mesh.submit("x", cpu=2)
        mesh.delete("x")
        mesh.make("p-pg-1")
        assert mesh.state.groups.by_id["p-pg-1"].free is kept
        assert bool(mesh.removes) is not kept


def test_late_reports_of_groups_off_the_book_say_nothing():
    mesh = meshed()
    for stimulus in (
        s.GroupCreated(group_id="x"),
        s.GroupCreateFailed(group_id="x", error="e"),
        s.GroupGone(group_id="x"),
    ):
        assert mesh.handle(stimulus).facts == ()


def test_a_group_that_ray_does_not_place_refuses_its_agent_and_frees_its_room():
    mesh = meshed()
    mesh.submit("x", cpu=2, more={"request_id": "r"})
    mesh.unmake("p-pg-1", "bundle 0 (cpu 2): no node")
    refused = mesh.state.answers["r"].outcome
    assert refused.reason == "group_unplaceable"
    assert "bundle 0 (cpu 2): no node" in refused.error
    assert not mesh.state.groups.by_id
    assert mesh.state.cluster.nodes["a"].free.cpu == 80_000


def test_victims_of_a_group_that_was_not_placed_have_its_room_again():
    mesh = meshed(cpu=2, max_dynamic=1)
    slot(mesh, "low", priority=0.0)
    mesh.submit("high", priority=9.0, cpu=1, more={"request_id": "r"})
    mesh.leave("low", saved=True)
    mesh.remove("p-pg-1")

    mesh.unmake("p-pg-2")

    assert mesh.state.answers["r"].outcome.requeued == ("low",)
    mesh.make_all()
    mesh.report("low")


def test_a_reserved_group_that_ray_did_not_place_is_tried_again_after_the_wait_limit():
    mesh = meshed(reserved=(shape({"cpu": 2}),), wait_s=30.0)
    mesh.unmake("p-pg-1")
    assert kinds(mesh.tick(29.0)) == []
    assert kinds(mesh.tick(1.0)) == [CreateGroup]


def test_a_lost_group_loses_its_agent_and_a_reserved_one_is_made_again():
    mesh = meshed(reserved=(shape({"cpu": 2}),))
    mesh.make_all()
    mesh.run("x", priority=9.0, cpu=2, class_key="c")

    step = mesh.remove("p-pg-1")

    assert set(kinds(step)) == {StopAgent, CreateGroup}
    assert isinstance(mesh.state.agents["x"].phase, Ending)
    mesh.leave("x")
    assert "x" in mesh.state.lost
    assert list(mesh.makes) == ["p-pg-2"]


def test_an_agent_whose_group_is_lost_while_it_starts_never_runs():
    mesh = meshed()
    mesh.submit("x", cpu=2, more={"request_id": "r"})
    mesh.make_all()
    assert StopAgent in kinds(mesh.remove("p-pg-1"))
    assert mesh.report("x") is None
    mesh.leave("x")
    assert mesh.state.answers["r"].outcome.reason == "agent_start_failed"
    assert not mesh.state.agents


@pytest.mark.parametrize("phase", ["running", "starting", "waiting"])
def test_a_dead_node_takes_its_groups_along_with_those_who_live_there(phase):
    mesh = meshed(nodes=("a", "b"))
    mesh.submit("x", cpu=2, class_key="c", more={"request_id": "r"})
    if phase != "waiting":
        mesh.make_all()
    if phase == "running":
        mesh.report("x")

    mesh.observe(node("b", cpu=8))

    assert mesh.removes == {"p-pg-1"}
    if phase == "waiting":
        assert mesh.state.answers["r"].outcome.reason == "group_unplaceable"
        assert "node a died" in mesh.state.answers["r"].outcome.error
    else:
        mesh.remove("p-pg-1")
        mesh.starts.clear()
        mesh.leave("x")
        assert ("x" in mesh.state.lost) is (phase == "running")
    assert not mesh.state.agents


def test_a_group_over_two_nodes_is_lost_with_one_and_holds_the_other_until_it_is_gone():
    mesh = meshed(nodes=("a", "b"), strategy="STRICT_SPREAD")
    mesh.submit("x", bundles=({"cpu": 3}, {"cpu": 3}))
    mesh.make_all()
    mesh.report("x")
    mesh.observe(node("b", cpu=8))
    assert mesh.state.cluster.nodes["b"].free.cpu == 50_000
    mesh.remove("p-pg-1")
    assert mesh.state.cluster.nodes["b"].free.cpu == 80_000
    mesh.leave("x")


def test_reserved_groups_are_made_again_elsewhere_after_a_node_death():
    mesh = meshed(nodes=("a", "b"), reserved=(shape({"cpu": 2}),))
    mesh.make_all()
    assert mesh.state.groups.by_id["p-pg-1"].node_ids == ("a",)
    mesh.observe(node("b", cpu=8))
    assert mesh.makes["p-pg-2"].node_ids == ("b",)


def test_a_planned_group_on_a_dead_node_refuses_its_incoming_agent():
    mesh = meshed(cpu=4, nodes=("a", "b"))
    for name in ("x", "y", "z"):
        slot(mesh, name, priority=9.0 if name == "z" else 0.0)
    mesh.submit("high", priority=9.0, cpu=4, more={"request_id": "r"})
    assert mesh.state.agents["high"].node_id == "a"
    mesh.observe(node("b", cpu=4))
    assert mesh.state.answers["r"].outcome.reason == "group_unplaceable"


def found(mesh, *, living=(), groups=()):
    """The supervisor was killed; this is what it finds."""
    mesh.starts.clear()
    mesh.ends.clear()
    mesh.makes.clear()
    mesh.removes.clear()
    lives = frozenset((name, mesh.state.agents[name].incarnation) for name in living)
    return mesh.handle(s.RecoveryObserved(living=lives, groups=frozenset(groups)))


def test_after_a_restart_a_group_that_was_being_made_is_taken_over():
    mesh = meshed()
    mesh.submit("x", cpu=2)
    assert kinds(found(mesh)) == [CreateGroup]
    mesh.make_all()
    mesh.report("x")


def test_after_a_restart_a_group_that_was_being_removed_is_removed_once_more_or_struck_off():
    for there in (True, False):
        mesh = meshed(reuse=False)
        slot(mesh, "x")
        mesh.complete("x")
        step = found(mesh, groups=["p-pg-1"] if there else [])
        assert kinds(step) == ([RemoveGroup] if there else [])
        assert bool(mesh.state.groups.by_id) is there


def test_after_a_restart_a_ready_group_that_is_gone_is_lost_with_its_agent():
    mesh = meshed(reserved=(shape({"cpu": 2}),))
    mesh.make_all()
    mesh.run("x", priority=9.0, cpu=2)
    found(mesh, living=["x"])
    assert isinstance(mesh.state.agents["x"].phase, Ending)
    assert list(mesh.makes) == ["p-pg-2"]


def test_after_a_restart_a_handover_goes_on():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low", priority=0.0)
    mesh.submit("high", priority=9.0, cpu=2)
    found(mesh, living=["low"], groups=["p-pg-1"])
    mesh.leave("low")
    mesh.report("high")
    assert mesh.state.agents["high"].group_id == "p-pg-1"


def test_after_a_restart_a_victim_that_is_gone_has_preempted_group():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low", priority=0.0)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.save("low")
    step = found(mesh, groups=["p-pg-1"])
    assert kinds(step).count(StartAgent) == 1
    mesh.report("high")


def test_after_a_restart_nothing_is_ordered_twice():
    mesh = meshed(cpu=2, max_dynamic=1)
    slot(mesh, "low", priority=0.0)
    mesh.submit("high", priority=9.0, cpu=1)
    mesh.save("low")
    step = found(mesh, groups=["p-pg-1"])
    assert kinds(step) == [RemoveGroup]
    mesh.remove("p-pg-1")
    mesh.make_all()
    mesh.report("high")


def test_a_start_in_a_group_that_is_gone_is_undone_after_a_restart():
    mesh = meshed()
    mesh.submit("x", cpu=2, more={"request_id": "r"})
    mesh.make_all()
    step = found(mesh)
    assert StartAgent not in kinds(step)
    assert mesh.state.answers["r"].outcome.reason == "agent_start_failed"


def test_a_lost_agent_is_rebuilt_into_a_group():
    mesh = meshed(nodes=("a", "b"), reserved=(shape({"cpu": 2}),), max_dynamic=0)
    mesh.make_all()
    mesh.run("x", priority=9.0, cpu=2, class_key="c")
    mesh.save("x")
    mesh.observe(node("b", cpu=8))
    mesh.leave("x")
    mesh.make_all()

    mesh.handle(s.RebuildRequested(agent_name="x", request_id="again"))

    assert (mesh.starts["x"].group_id, mesh.starts["x"].state_key) == ("p-pg-2", "state-x")
    mesh.report("x")
