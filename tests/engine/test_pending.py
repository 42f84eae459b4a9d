"""Agents that wait for others to leave: let in when all is there, undone when it cannot be."""

from __future__ import annotations

import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.engine.state.agents import Waiting
from schedulemesh.engine.state.groups import GroupPhase
from tests.engine.builders import Mesh, node, pool


def preempts_group_of(**spec):
    """``low`` lives in the pool's only group; ``high`` has evicted it and waits."""
    mesh = Mesh(
        pool("p", cpu=4, groups=GroupsSpec(**{"max_dynamic": 1, **spec})), nodes=[node("a", cpu=4)]
    )
    mesh.submit("low", priority=0.0, cpu=4, class_key="c")
    mesh.make_all()
    mesh.report("low")
    mesh.submit("high", priority=9.0, cpu=4, class_key="c", more={"request_id": "r"})
    return mesh


def answer(mesh):
    return mesh.state.answers["r"].outcome


def test_an_incoming_agent_starts_when_its_victim_is_gone_and_the_group_stays():
    mesh = preempts_group_of()
    assert isinstance(mesh.state.agents["high"].phase, Waiting)
    group = mesh.state.groups.by_id["p-pg-1"]
    assert (group.agent, group.promised_to) == ("low", "high")

    mesh.now += 2.0
    mesh.leave("low", saved=True)

    assert (group.agent, group.promised_to) == ("high", None)
    assert mesh.starts["high"].group_id == "p-pg-1"
    assert not mesh.makes
    assert not mesh.removes
    mesh.report("high")
    assert isinstance(answer(mesh), Accepted)
    counts = mesh.state.groups.counts["p"]
    assert (counts.created, counts.reused, counts.entered, counts.waited_s) == (1, 1, 2, 2.0)


@pytest.mark.parametrize("reuse", [True, False])
def test_a_start_that_fails_after_a_handover_gives_the_group_back_to_the_victim(reuse):
    mesh = preempts_group_of(reuse=reuse)
    mesh.leave("low", saved=True)

    mesh.fail("high")

    assert answer(mesh).restarted == ("low",)
    assert mesh.starts["low"].group_id == "p-pg-1"
    assert mesh.starts["low"].state_key == "state-low"
    assert not mesh.makes
    assert not mesh.removes
    mesh.report("low")


def test_without_reuse_a_group_goes_when_its_incoming_agent_could_not_start_and_nobody_comes_back():
    mesh = preempts_group_of(reuse=False)
    mesh.die("low")
    mesh.state.preempted.clear()
    mesh.fail("high")
    assert mesh.removes == {"p-pg-1"}


def test_an_incoming_agent_that_is_deleted_while_it_waits_leaves_the_group_to_the_victims_end():
    mesh = preempts_group_of()
    mesh.delete("high")
    group = mesh.state.groups.by_id["p-pg-1"]
    assert (group.agent, group.promised_to) == ("low", None)
    assert answer(mesh).reason == "agent_deleted"
    mesh.leave("low")
    assert group.free


def test_a_group_that_was_to_leave_for_an_incoming_agent_that_is_gone_is_kept():
    mesh = Mesh(pool("p", cpu=9, groups=GroupsSpec(max_dynamic=1)), nodes=[node("a", cpu=4)])
    mesh.submit("low", priority=0.0, cpu=4)
    mesh.make_all()
    mesh.report("low")
    mesh.submit("high", priority=9.0, cpu=2)
    group = mesh.state.groups.by_id["p-pg-1"]
    assert group.leaves_for == "high"
    mesh.delete("high")
    mesh.leave("low")
    assert group.free
    assert not mesh.removes


def test_a_group_that_is_lost_refuses_the_one_who_waits_for_it():
    mesh = preempts_group_of()
    mesh.remove("p-pg-1")
    assert isinstance(answer(mesh), Refused)
    assert answer(mesh).reason == "group_unplaceable"
    assert "gone from Ray" in answer(mesh).error
    assert "high" not in mesh.state.agents
    mesh.leave("low")
    assert not mesh.state.agents


def test_a_planned_group_is_made_when_its_room_is_whole():
    mesh = Mesh(pool("p", cpu=9, groups=GroupsSpec(max_dynamic=2)), nodes=[node("a", cpu=4)])
    for name in ("x", "y"):
        mesh.submit(name, priority=0.0, cpu=2)
        mesh.make_all()
        mesh.report(name)
    mesh.submit("high", priority=9.0, cpu=4, more={"request_id": "r"})
    group = mesh.state.groups.by_id[mesh.state.agents["high"].group_id]
    assert group.phase is GroupPhase.PLANNED

    mesh.leave("x")
    mesh.remove("p-pg-1")
    assert not mesh.makes
    mesh.leave("y")
    mesh.remove("p-pg-2")

    assert list(mesh.makes) == [group.group_id]
    mesh.make_all()
    mesh.report("high")
    assert isinstance(answer(mesh), Accepted)


def test_a_plain_incoming_agent_waits_for_idle_groups_and_takes_their_room():
    mesh = Mesh(
        pool("p", cpu=4, groups=GroupsSpec(max_dynamic=2)),
        pool("plain", cpu=4),
        nodes=[node("a", cpu=4)],
    )
    mesh.submit("x", cpu=4)
    mesh.make_all()
    mesh.report("x")
    mesh.complete("x")

    mesh.submit("y", "plain", cpu=3)

    assert mesh.removes == {"p-pg-1"}
    assert isinstance(mesh.state.agents["y"].phase, Waiting)
    mesh.remove("p-pg-1")
    mesh.report("y")
    assert mesh.state.cluster.nodes["a"].free.cpu == 10_000


@pytest.mark.parametrize("taken", ["a", "b"])
def test_a_victims_task_whose_id_was_taken_meanwhile_does_not_run_again(taken):
    """Its agent is made again for the other one."""
    mesh = Mesh(pool("p", cpu=2), nodes=[node("n", cpu=2)])
    mesh.run("a", priority=1.0, cpu=2, class_key="c")
    mesh.announce("b", "a", priority=1.0)
    mesh.submit("high", priority=9.0, cpu=2, class_key="c", more={"request_id": "r"})
    mesh.leave("a", saved=True)
    mesh.announce(taken, "elsewhere", priority=1.0)
    mesh.fail("high")
    kept = "b" if taken == "a" else "a"
    refused = mesh.state.answers["r"].outcome
    assert (refused.restarted, refused.not_restarted) == ((kept,), (taken,))
    mesh.report("a")
    assert mesh.state.running.on_agent("a") == (kept,)
    assert mesh.complete(kept) is not None
    assert mesh.state.agents == {}
