"""Admission of a decided submission: claims, groups, instructions, and dry runs."""

from __future__ import annotations

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import (
    CreateGroup,
    EvictAgent,
    RemoveGroup,
    StartAgent,
)
from schedulemesh.engine.messages.outcomes import Accepted, Pending, ProbeNeeded
from schedulemesh.engine.state.agents import Starting
from schedulemesh.engine.state.groups import GroupPhase
from tests.engine.builders import Mesh, amount, names, node, pool, shape


def meshed(**spec):
    mesh = Mesh(
        pool("p", cpu=8, labels={"team": "t"}, groups=GroupsSpec(**{"max_dynamic": 2, **spec})),
        nodes=[node("a", cpu=4)],
    )
    mesh.make_all()
    return mesh


def slot(mesh, name, **how):
    mesh.submit(name, **{"priority": 0.0, "cpu": 2, **how})
    mesh.make_all()
    mesh.report(name)


def orders(mesh, name, **how):
    """The kinds of orders that a submission gives."""
    step = mesh.handle(mesh.submission(name, **{"priority": 9.0, "cpu": 2, **how}))
    assert isinstance(step.outcome, Pending)
    return [type(order) for order in step.instructions]


def test_a_free_group_starts_the_agent_at_once():
    mesh = meshed(reserved=(shape({"cpu": 2}),))
    assert orders(mesh, "x") == [StartAgent]
    order = mesh.starts["x"]
    assert (order.group_id, order.node_id) == ("p-pg-1", "a")
    assert isinstance(mesh.state.agents["x"].phase, Starting)
    assert mesh.state.agents["x"].spec.labels == {"pool": "p", "team": "t"}
    assert "x" not in mesh.state.cluster.nodes["a"].allocations, "the group stands there for it"


def test_a_new_group_is_asked_for_first():
    mesh = meshed()
    assert orders(mesh, "x") == [CreateGroup]
    assert mesh.makes["p-pg-1"].wait_s == 30.0
    agent = mesh.state.agents["x"]
    assert agent.phase.for_groups == {"p-pg-1"}
    assert mesh.free() == amount(cpu=6)


def test_an_idle_group_that_makes_way_goes_before_the_new_one_is_asked_for():
    mesh = meshed()
    slot(mesh, "x")
    mesh.complete("x")
    assert orders(mesh, "y", cpu=4) == [RemoveGroup]
    group = mesh.state.groups.by_id["p-pg-2"]
    assert group.phase is GroupPhase.PLANNED
    assert mesh.state.cluster.nodes["a"].free == amount(), "what is free of its room is its own"
    mesh.remove("p-pg-1")
    assert list(mesh.makes) == ["p-pg-2"]


def test_a_handover_evicts_and_makes_nothing():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low")
    assert orders(mesh, "high") == [EvictAgent]
    assert mesh.state.groups.by_id["p-pg-1"].promised_to == "high"


def test_a_group_of_a_victim_is_claimed_and_goes_when_it_has_left():
    mesh = meshed()
    slot(mesh, "low")
    assert orders(mesh, "high", cpu=4) == [EvictAgent]
    group = mesh.state.groups.by_id["p-pg-1"]
    assert (group.phase, group.leaves_for) == (GroupPhase.READY, "high")
    mesh.leave("low")
    assert mesh.removes == {"p-pg-1"}


def test_nobody_is_evicted_before_the_class_was_seen_to_load():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low")
    assert mesh.submit("high", priority=9.0, cpu=2, class_key="new") == ProbeNeeded(class_key="new")
    mesh.handle(s.ClassProbed(class_key="new"))
    assert isinstance(mesh.submit("high", priority=9.0, cpu=2, class_key="new"), Pending)


def test_idle_groups_leave_without_a_probe():
    mesh = meshed()
    slot(mesh, "x")
    mesh.complete("x")
    assert isinstance(mesh.submit("y", cpu=4, class_key="new"), Pending)


def test_a_dry_run_names_the_way_and_the_victims():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low")
    accepted = mesh.dry("high", priority=9.0, cpu=2)
    assert isinstance(accepted, Accepted)
    assert (accepted.group_path, accepted.group_id) == ("preempted", "p-pg-1")
    assert names(accepted.preempted) == ["low"]


def test_several_bundles_are_one_claim_on_quota():
    mesh = meshed(strategy="PACK")
    mesh.submit("x", bundles=({"cpu": 1}, {"cpu": 2}))
    assert mesh.free() == amount(cpu=5)
    mesh.make_all()
    mesh.report("x")
    assert mesh.state.groups.by_id["p-pg-1"].shape.bundles == (amount(cpu=1), amount(cpu=2))


def test_options_that_place_an_agent_conflict_with_its_group():
    mesh = meshed()
    refused = mesh.submit("x", cpu=2, more={"choose_node": False})
    assert refused.reason == "conflicting_options"


def test_a_pool_without_groups_has_none_to_give():
    mesh = Mesh(pool("plain", cpu=8), nodes=[node("a", cpu=8)])
    assert mesh.submit("x", "plain", cpu=2, more={"for_group": True}).reason == "no_pg_pool"
    assert mesh.submit("x", "plain", bundles=({"cpu": 1},) * 2).reason == "no_pg_pool"
    assert isinstance(mesh.submit("x", "plain", bundles=({"cpu": 1},)), Pending)


def test_a_repeated_request_gets_its_first_answer():
    mesh = meshed()
    for _ in range(2):
        outcome = mesh.submit("x", cpu=2, more={"request_id": "r"})
        assert outcome == Pending(agent_name="x")
    mesh.make_all()
    accepted = mesh.report("x")
    assert accepted.group_path == "created"
    assert mesh.submit("x", cpu=2, more={"request_id": "r"}) == accepted
