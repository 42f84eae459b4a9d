"""Gangs: several processes that are admitted, placed, evicted and ended as one agent."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.payloads import GangPayload, MemberSpec
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Pending, ProbeNeeded, Refused
from schedulemesh.engine.state.agents import Running, Waiting
from schedulemesh.engine.state.snapshot import referenced, take_snapshot
from tests.engine.builders import Mesh, amount, differences, names, node, pool


def gang(strategy="", same_label="", members=()):
    return GangPayload(strategy=strategy, same_label=same_label, members=members)


def three(**bundle):
    return [bundle or {"cpu": 1}] * 3


def racks():
    return [node(f"n{i}", cpu=2, labels={"rack": "r1" if i < 3 else "r2"}) for i in range(1, 6)]


@pytest.fixture
def mesh():
    """Three nodes with two CPUs each, and a pool without placement groups that may use all of them."""
    return Mesh(pool("p", cpu=6), nodes=[node(f"n{i}", cpu=2) for i in (1, 2, 3)])


def started(mesh, name, *args, **how):
    """Submit a gang that fits; Ray makes its group, and its members report."""
    outcome = mesh.submit(name, *args, **how)
    assert isinstance(outcome, Pending), outcome
    mesh.make_all()
    return mesh.report(name)


def test_a_gang_starts_in_a_group_of_its_own_in_a_pool_that_keeps_none(mesh):
    outcome = started(mesh, "g", bundles=three(), payload=gang("STRICT_SPREAD"))
    assert isinstance(outcome, Accepted)
    agent = mesh.state.agents["g"]
    group = mesh.state.groups.by_id[agent.group_id]
    assert sorted(group.node_ids) == ["n1", "n2", "n3"]
    assert outcome.resources == amount(cpu=3)
    assert mesh.free() == amount(cpu=3)
    assert len(agent.phase.members) == 3


def test_its_group_is_removed_with_it(mesh):
    started(mesh, "g", bundles=three(), payload=gang())
    mesh.complete("g")
    (group_id,) = mesh.removes
    mesh.remove(group_id)
    assert mesh.state.groups.by_id == {}
    assert mesh.free() == amount(cpu=6)
    assert all(found.free == found.total for found in mesh.state.cluster.nodes.values())


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"])
def test_a_gang_that_does_not_fit_whole_holds_nothing(mesh, strategy):
    mesh.run("busy", cpu=2)
    before = {n: found.free for n, found in mesh.state.cluster.nodes.items()}
    outcome = mesh.submit("g", bundles=[{"cpu": 2}] * 3, payload=gang(strategy))
    assert isinstance(outcome, Refused)
    assert mesh.free() == amount(cpu=4)
    assert {n: found.free for n, found in mesh.state.cluster.nodes.items()} == before
    assert mesh.state.groups.by_id == {}


def test_quota_for_two_of_three_members_is_no_quota():
    mesh = Mesh(pool("p", cpu=3), nodes=[node("n1", cpu=8)])
    mesh.run("one", cpu=1)
    outcome = mesh.submit("g", bundles=three(), payload=gang())
    assert isinstance(outcome, Refused)
    assert outcome.reason is Reason.PREEMPTION_FAILED
    assert outcome.short_quota == amount(cpu=1)
    assert mesh.free() == amount(cpu=2)


def test_what_the_cluster_could_never_hold_is_refused_for_ever(mesh):
    outcome = mesh.submit("g", bundles=[{"cpu": 1}] * 4, payload=gang("STRICT_SPREAD"))
    assert isinstance(outcome, Refused)
    assert outcome.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    assert "STRICT_SPREAD needs 4 nodes, and there are 3" in outcome.error


def test_bundles_without_a_gang_still_need_a_pool_with_groups(mesh):
    outcome = mesh.submit("g", bundles=three())
    assert outcome.reason is Reason.NO_PG_POOL


def test_a_gang_that_its_ray_options_place_is_refused(mesh):
    outcome = mesh.submit("g", bundles=three(), payload=gang(), more={"choose_node": False})
    assert outcome.reason is Reason.CONFLICTING_OPTIONS


def test_all_members_stand_on_nodes_with_the_same_label_value():
    mesh = Mesh(pool("p", cpu=10), nodes=racks())
    mesh.run("busy", cpu=2, node_id="n5")
    started(mesh, "g", bundles=[{"cpu": 2}] * 2, payload=gang("STRICT_SPREAD", "rack"))
    group = mesh.state.groups.by_id[mesh.state.agents["g"].group_id]
    assert sorted(group.node_ids) in (["n1", "n2"], ["n3", "n4"])


def test_room_in_two_racks_is_no_room_for_a_gang_of_one_rack():
    mesh = Mesh(pool("p", cpu=10), nodes=racks())
    for name, node_id in (("a", "n1"), ("b", "n3"), ("c", "n4")):
        mesh.run(name, cpu=2, node_id=node_id, more={"choose_node": False})
    assert isinstance(
        mesh.submit("g", bundles=[{"cpu": 2}] * 2, payload=gang("PACK", "rack")), Refused
    )
    assert isinstance(mesh.submit("h", bundles=[{"cpu": 2}] * 2, payload=gang("PACK")), Pending)


def test_a_gang_of_one_rack_evicts_in_one_rack():
    mesh = Mesh(pool("p", cpu=10), nodes=racks())
    for number in range(1, 6):
        how = {"more": {"choose_node": False}, "node_id": f"n{number}"}
        mesh.run(f"t{number}", priority=1.0, cpu=2, **how)
    outcome = mesh.dry("g", priority=9.0, bundles=[{"cpu": 2}] * 2, payload=gang("PACK", "rack"))
    racks_of = {"t1": "r1", "t2": "r1", "t3": "r2", "t4": "r2", "t5": "r2"}
    assert len(outcome.preempted) == 2
    assert len({racks_of[name] for name in names(outcome.preempted)}) == 1


def test_a_node_without_the_label_takes_no_member():
    mesh = Mesh(pool("p", cpu=10), nodes=[node("n1", cpu=4), node("n2", cpu=4)])
    outcome = mesh.submit("g", bundles=three(), payload=gang(same_label="rack"))
    assert outcome.reason is Reason.CLUSTER_OUT_OF_RESOURCES


def test_victims_leave_for_the_whole_gang_and_no_more_than_needed(mesh):
    for number in (1, 2, 3):
        mesh.run(f"t{number}", priority=1.0, cpu=1.5)
    outcome = mesh.submit(
        "g", priority=9.0, bundles=[{"cpu": 2}] * 2, payload=gang("STRICT_SPREAD")
    )
    assert isinstance(outcome, Pending)
    agent = mesh.state.agents["g"]
    assert len(agent.phase.for_agents) == 2
    for victim in sorted(agent.phase.for_agents):
        assert isinstance(mesh.state.agents["g"].phase, Waiting)
        mesh.leave(victim)
    mesh.make_all()
    assert isinstance(mesh.report("g"), Accepted)


def test_a_gang_is_evicted_as_one_and_frees_all_its_nodes(mesh):
    started(mesh, "g", priority=1.0, bundles=[{"cpu": 2}] * 3, payload=gang("SPREAD"))
    mesh.submit("new", priority=9.0, cpu=2)
    assert set(mesh.ends) == {"g"}
    mesh.leave("g", saved=True)
    assert mesh.state.preempted["g"].state_key == "state-g"
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert isinstance(mesh.report("new"), Accepted)
    assert mesh.free() == amount(cpu=4)


def test_a_gang_that_was_evicted_is_submitted_again_whole(mesh):
    started(mesh, "g", priority=1.0, bundles=three(), payload=gang(), class_key="c")
    mesh.preempt(agent_name="g", end_agent=True)
    mesh.leave("g", saved=True)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    past = mesh.state.preempted["g"].fact
    mesh.handle(s.TaskSubmitted(agent=past.agent, task=past.task, state_key="state-g"))
    mesh.make_all()
    assert mesh.starts["g"].state_key == "state-g"
    assert mesh.starts["g"].agent.bundles == past.agent.bundles


def test_a_lost_gang_gives_everything_back_and_is_rebuilt_whole(mesh):
    started(mesh, "g", bundles=three(), payload=gang("STRICT_SPREAD"), class_key="c")
    mesh.save("g")
    mesh.die("g")
    assert mesh.free() == amount(cpu=6)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.handle(s.RebuildRequested(agent_name="g", request_id="r"))
    mesh.make_all()
    assert mesh.starts["g"].state_key == "state-g"
    assert isinstance(mesh.report("g"), Accepted)


def test_a_gang_whose_start_fails_leaves_nothing(mesh):
    mesh.submit("g", bundles=three(), payload=gang())
    mesh.make_all()
    refused = mesh.fail("g")
    assert mesh.state.agents == {}
    assert refused.reason == Reason.AGENT_START_FAILED
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert mesh.state.groups.by_id == {}
    assert mesh.free() == amount(cpu=6)


def test_a_group_that_ray_does_not_place_refuses_the_gang(mesh):
    mesh.submit("g", bundles=three(), payload=gang())
    mesh.unmake(*mesh.makes)
    assert mesh.state.agents == {}
    assert mesh.free() == amount(cpu=6)


def test_names_of_members_are_taken(mesh):
    started(mesh, "g", bundles=three(), payload=gang())
    assert mesh.submit("g-2", cpu=1).reason is Reason.DUPLICATE_AGENT
    assert isinstance(mesh.submit("g-3", cpu=1), Pending)
    assert isinstance(mesh.submit("g-02", cpu=1), Pending)


def test_a_gang_does_not_take_the_names_of_agents(mesh):
    mesh.run("g-1", cpu=1)
    refused = mesh.submit("g", bundles=three(), payload=gang())
    assert refused.reason is Reason.DUPLICATE_AGENT
    assert "'g-1'" in refused.error


def test_every_class_of_unequal_members_is_probed_before_anyone_is_evicted(mesh):
    members = (MemberSpec(class_key="c1"), MemberSpec(class_key="c2", arguments_key="args"))
    mesh.run("t", priority=1.0, cpu=6, more={"choose_node": False})
    how = {"bundles": [{"cpu": 1}, {"cpu": 2}], "payload": gang(members=members), "class_key": "c1"}
    assert mesh.submit("g", priority=9.0, **how) == ProbeNeeded(class_key="c1")
    mesh.handle(s.ClassProbed(class_key="c1"))
    assert mesh.submit("g", priority=9.0, **how) == ProbeNeeded(class_key="c2")
    mesh.handle(s.ClassProbed(class_key="c2"))
    assert isinstance(mesh.submit("g", priority=9.0, **how), Pending)
    assert {"c1", "c2", "args"} <= referenced(take_snapshot(mesh.state))


def test_reported_devices_of_every_member_are_confirmed():
    mesh = Mesh(pool("p", cpu=6, gpu=4), nodes=[node("n1", cpu=4, gpu=2), node("n2", cpu=4, gpu=2)])
    started(mesh, "g", bundles=[{"cpu": 1, "gpu": 2}] * 2, payload=gang("STRICT_SPREAD"))
    held = [
        allocation
        for found in mesh.state.cluster.nodes.values()
        for allocation in found.allocations.values()
    ]
    assert len(held) == 2
    assert all(allocation.reported for allocation in held)


def test_gangs_are_the_same_after_the_journal_and_a_snapshot(mesh):
    started(mesh, "g", bundles=three(), payload=gang("SPREAD", ""))
    assert isinstance(mesh.state.agents["g"].phase, Running)
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_a_gang_in_a_pool_with_groups_is_placed_as_it_asks():
    spec = GroupsSpec(max_dynamic=2, strategy="STRICT_PACK", reuse=False)
    mesh = Mesh(pool("p", cpu=6, groups=spec), nodes=[node(f"n{i}", cpu=2) for i in (1, 2, 3)])
    started(mesh, "g", bundles=three(), payload=gang("STRICT_SPREAD"))
    group = mesh.state.groups.by_id[mesh.state.agents["g"].group_id]
    assert len(set(group.node_ids)) == 3
    mesh.delete("g")
    mesh.leave("g")
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert mesh.state.ledger.accounts["p"].used == NOTHING
    assert mesh.state.groups.by_id == {}


def test_a_member_is_not_deleted_alone(mesh):
    started(mesh, "g", bundles=three(), payload=gang())
    refused = mesh.delete("g-1")
    assert refused.reason is Reason.AGENT_NOT_FOUND
    assert "delete 'g'" in refused.error
    assert mesh.ends == {}


def queued_mesh(**how):
    """Three nodes of two CPUs, in a pool whose victims return."""
    return Mesh(pool("p", cpu=6), nodes=[node(f"n{i}", cpu=2) for i in (1, 2, 3)], **how)


def removed(mesh):
    """Ray has removed every group that it was told to."""
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)


def test_a_gang_waits_holding_nothing_starts_whole_loses_a_member_and_recovers():
    mesh = queued_mesh()
    for number in (1, 2, 3):
        mesh.run(f"t{number}", cpu=1.5)
    how = {"bundles": [{"cpu": 2}] * 3, "payload": gang("STRICT_SPREAD"), "class_key": "c"}
    assert mesh.queue("g", **how).position == 1
    for number in (1, 2):
        mesh.complete(f"t{number}")
        assert mesh.waiting() == ["g"]
        assert mesh.state.groups.by_id == {}
        assert "g" not in mesh.state.agents
    mesh.complete("t3")
    assert mesh.waiting() == []
    mesh.make_all()
    mesh.report("g")
    mesh.save("g")
    mesh.die("g")
    removed(mesh)
    mesh.handle(s.RebuildRequested(agent_name="g", request_id="r"))
    mesh.make_all()
    assert mesh.starts["g"].state_key == "state-g"
    assert isinstance(mesh.report("g"), Accepted)


def test_an_evicted_gang_joins_the_queue_whole_and_returns_with_its_state():
    mesh = queued_mesh()
    mesh.handle(
        s.PoolRequested(spec=msgspec.structs.replace(pool("p", cpu=6), on_preempted="requeue"))
    )
    how = {"bundles": [{"cpu": 2}] * 3, "payload": gang("SPREAD"), "class_key": "c"}
    mesh.queue("g", priority=1.0, **how)
    mesh.make_all()
    mesh.report("g")
    mesh.submit("urgent", priority=9.0, cpu=2)
    mesh.leave("g", saved=True)
    removed(mesh)
    mesh.report("urgent")
    assert mesh.waiting() == ["g"]
    assert mesh.free() == amount(cpu=4)
    mesh.complete("urgent")
    assert mesh.waiting() == []
    mesh.make_all()
    assert mesh.starts["g"].state_key == "state-g"
    assert isinstance(mesh.report("g"), Accepted)
    assert differences(mesh.state, mesh.refolded()) == []


def test_a_large_task_without_room_does_not_keep_a_gang_of_the_same_size_waiting():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("n1", cpu=4), node("n2", cpu=4)])
    for name, node_id in (("a", "n1"), ("b", "n2"), ("c", "n1"), ("d", "n2")):
        mesh.run(name, cpu=2, node_id=node_id, more={"choose_node": False})
    mesh.queue("wide", priority=5.5, cpu=4)
    mesh.queue("g", bundles=[{"cpu": 2}] * 2, payload=gang())
    mesh.complete("c")
    assert mesh.waiting() == ["wide", "g"]
    mesh.complete("d")
    assert mesh.waiting() == ["wide"]
    mesh.make_all()
    assert list(mesh.starts) == ["g"]
