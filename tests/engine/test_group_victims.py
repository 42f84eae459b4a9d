"""Whose group an incoming agent gets, and which agents are evicted for it."""

from __future__ import annotations

import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, Refused
from tests.engine.builders import Mesh, amount, names, node, pool, shape

SMALL, BIG = shape({"cpu": 2}), shape({"cpu": 4})
RULES = {"role": {"train": ("reward", "rollout"), "reward": ("rollout",)}}


def meshed(cpu=8, quota=40, nodes=("a",), policy=None, **spec):
    mesh = Mesh(
        pool("p", cpu=quota, groups=GroupsSpec(**{"max_dynamic": 9, **spec})),
        nodes=[node(name, cpu=cpu) for name in nodes],
        **(policy or {}),
    )
    mesh.make_all()
    return mesh


def slot(mesh, name, pool_name="p", priority=0.0, **how):
    assert isinstance(mesh.submit(name, pool_name, priority, **{"cpu": 2, **how}), Pending)
    mesh.make_all()
    mesh.report(name)
    mesh.now += 1.0


def victims(mesh, name, **how):
    """Who would be evicted for it; or the code of the refusal."""
    outcome = mesh.dry(name, **{"cpu": 2, "priority": 9.0, **how})
    if isinstance(outcome, Refused):
        return outcome.reason
    return names(outcome.preempted)


def for_group(**how):
    return {**how, "more": {"for_group": True}}


# the group of a victim


def test_a_victim_goes_and_its_group_stays_for_the_incoming_agent():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low")
    mesh.submit("high", priority=9.0, cpu=2, more={"for_group": True})
    assert not mesh.makes
    mesh.leave("low")
    mesh.report("high")
    agent = mesh.state.agents["high"]
    assert (agent.group_id, agent.place.path) == ("p-pg-1", "preempted")
    assert "GroupEnding" not in mesh.told_facts()
    assert mesh.told_facts("GroupReady") == ["GroupReady"]


def test_of_several_the_one_with_the_highest_score():
    mesh = meshed(max_dynamic=3)
    for name, duration in (("short", 10.0), ("long", 90.0), ("mid", 40.0)):
        slot(mesh, name, duration=duration)
    assert victims(mesh, "high", **for_group()) == ["long"]


def test_only_a_group_of_the_same_shape_is_preempted_group():
    mesh = meshed(cpu=6, max_dynamic=2)
    slot(mesh, "big", cpu=4, priority=-5.0)
    slot(mesh, "low")
    assert victims(mesh, "high", **for_group()) == ["low"]
    assert victims(mesh, "high", **for_group(cpu=3)) == "group_unplaceable"


def test_a_reserved_group_is_preempted_group_to_the_entitled_only():
    mesh = meshed(cpu=2, reserved=(SMALL,), max_dynamic=0)
    slot(mesh, "reward", priority=6.0)
    assert victims(mesh, "train", **for_group()) == ["reward"]
    mesh.policy(same_pool_priority_threshold=0.5)
    mesh = meshed(cpu=2, reserved=(SMALL,), entitled_above=20.0, max_dynamic=0)
    assert victims(mesh, "train", **for_group()) == "group_unplaceable"


def test_a_policy_that_says_no_keeps_every_group():
    mesh = meshed(max_dynamic=1, policy={"label_preemption_rules": RULES})
    slot(mesh, "train", labels={"role": "train"})
    assert victims(mesh, "high", **for_group(labels={"role": "reward"})) == "group_unplaceable"
    assert victims(mesh, "high", **for_group(labels={"role": "train"})) == ["train"]
    mesh.policy(same_pool_priority_threshold=50.0)
    assert victims(mesh, "high", **for_group(labels={"role": "train"})) == "group_unplaceable"


def test_by_label_a_group_is_taken_at_equal_priority():
    mesh = meshed(max_dynamic=1, policy={"label_preemption_rules": RULES})
    slot(mesh, "rollout", labels={"role": "rollout"}, priority=5.0)
    how = for_group(labels={"role": "reward"}, priority=5.0)
    assert victims(mesh, "reward", **how) == ["rollout"]


def test_one_group_is_promised_once():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low")
    mesh.submit("high", priority=9.0, cpu=2, more={"for_group": True})
    assert victims(mesh, "higher", **for_group(priority=30.0)) == "group_unplaceable"


def test_an_agent_with_a_task_that_may_not_go_keeps_its_group():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low")
    mesh.announce("firm", "low", priority=20.0)
    assert victims(mesh, "high", **for_group()) == "group_unplaceable"


def test_a_group_on_a_cordoned_node_is_not_preempted_group():
    mesh = meshed(max_dynamic=1)
    slot(mesh, "low")
    mesh.cordon("a")
    assert victims(mesh, "high", **for_group()) == "group_unplaceable"


# quota


def test_for_a_group_nobody_is_evicted_for_quota():
    mesh = meshed(quota=4, reserved=(SMALL,))
    for name in ("x", "y"):
        slot(mesh, name)
    refused = mesh.submit("high", priority=9.0, cpu=2, more={"for_group": True})
    assert refused.reason == "insufficient_quota"
    assert refused.short_quota == amount(cpu=2)
    assert not mesh.ends


def test_short_quota_with_a_free_group_evicts_for_quota_alone():
    mesh = meshed(quota=4, reserved=(SMALL,))
    for name in ("x", "y"):
        slot(mesh, name)
    mesh.submit("high", priority=9.0, cpu=2)
    (victim,) = mesh.ends
    mesh.leave(victim)
    mesh.report("high")
    assert mesh.state.agents["high"].place.path == "reserved"
    assert len(mesh.state.groups.by_id) == 3, "a victim for quota leaves its group behind"


def test_quota_and_group_are_fought_for_together():
    mesh = meshed(quota=4, max_dynamic=2)
    for name in ("x", "y"):
        slot(mesh, name)
    mesh.submit("high", priority=9.0, cpu=2)
    (victim,) = mesh.ends
    mesh.leave(victim)
    mesh.report("high")
    assert mesh.state.agents["high"].place.path == "preempted"


def test_a_victim_that_frees_too_little_quota_is_joined_by_another():
    mesh = meshed(quota=5, reserved=(BIG,), max_dynamic=3)
    slot(mesh, "inside", cpu=3, priority=6.0)
    slot(mesh, "x", cpu=1)
    slot(mesh, "y", cpu=1)
    assert victims(mesh, "high", cpu=4, priority=20.0) == ["y", "inside"]
    mesh.submit("high", cpu=4, priority=20.0)
    for name in list(mesh.ends):
        mesh.leave(name)
    mesh.report("high")
    assert mesh.state.agents["high"].place.path == "preempted"


def test_neither_quota_nor_group_is_taken_where_one_of_them_cannot_be_had():
    mesh = meshed(quota=4, max_dynamic=2, cpu=4)
    slot(mesh, "low", cpu=2)
    slot(mesh, "firm", cpu=2, priority=20.0)
    refused = mesh.submit("high", priority=9.0, cpu=4)
    assert refused.reason == "preemption_failed"
    assert not mesh.ends
    assert mesh.free() == amount()


# room


def test_groups_of_victims_are_removed_and_a_new_one_is_made():
    mesh = meshed(cpu=4)
    slot(mesh, "x")
    slot(mesh, "y")
    mesh.submit("high", priority=9.0, cpu=4)
    assert sorted(mesh.ends) == ["x", "y"]
    for name in ("x", "y"):
        mesh.leave(name)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.make_all()
    mesh.report("high")
    assert mesh.state.agents["high"].place.path == "created"
    assert list(mesh.state.groups.by_id) == ["p-pg-3"]


def test_one_victim_that_is_enough_goes_rather_than_several():
    mesh = meshed(cpu=8, nodes=("a", "b"))
    for name in ("w", "x", "y", "z"):
        slot(mesh, name, cpu=2)
    slot(mesh, "big", cpu=6, priority=3.0)
    slot(mesh, "firm", cpu=2, priority=20.0)
    assert victims(mesh, "high", cpu=5) == ["big"]


def test_nobody_goes_who_is_not_needed():
    mesh = meshed(cpu=9)
    for name, cpu in (("w", 1), ("x", 3), ("y", 1), ("z", 4)):
        slot(mesh, name, cpu=cpu, priority=0.0)
    assert victims(mesh, "high", cpu=7) == ["z", "x"]


def test_two_halves_of_two_nodes_are_no_room():
    mesh = meshed(cpu=4, nodes=("a", "b"))
    for number, priority in enumerate((0.0, 20.0, 0.0, 20.0)):
        slot(mesh, f"t{number}", priority=priority)
    assert victims(mesh, "high", cpu=4) == "group_unplaceable"
    assert victims(mesh, "high", cpu=0, bundles=({"cpu": 1},) * 2) != "group_unplaceable"


@pytest.mark.parametrize(
    ("strategy", "gone"),
    [
        ("STRICT_SPREAD", ["t0", "t2"]),
        ("SPREAD", ["t0", "t2"]),
        ("PACK", ["t0", "t2"]),
        ("STRICT_PACK", "group_unplaceable"),
    ],
)
def test_bundles_take_the_room_of_victims_as_their_strategy_says(strategy, gone):
    mesh = meshed(cpu=4, nodes=("a", "b"), strategy=strategy)
    for number, priority in enumerate((0.0, 20.0, 0.0, 20.0)):
        slot(mesh, f"t{number}", priority=priority)
    found = victims(mesh, "high", cpu=0, bundles=({"cpu": 2}, {"cpu": 2}))
    assert (sorted(found) if isinstance(found, list) else found) == gone


def test_groups_that_nobody_uses_spare_victims():
    mesh = meshed(cpu=6)
    for name in ("idle", "x", "y"):
        slot(mesh, name)
    mesh.complete("idle")
    assert len(victims(mesh, "high", cpu=4)) == 1
    mesh.submit("high", priority=9.0, cpu=4)
    assert mesh.removes == {"p-pg-1"}
    (victim,) = mesh.ends
    mesh.leave(victim)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.make_all()
    mesh.report("high")
    assert len(mesh.state.groups.by_id) == 2


def test_at_the_limit_a_group_of_the_own_pool_must_go():
    mesh = meshed(cpu=20, max_dynamic=2)
    slot(mesh, "x", cpu=2)
    slot(mesh, "y", cpu=1)
    assert victims(mesh, "high", cpu=3) == ["y"]
    mesh.submit("high", priority=9.0, cpu=3)
    mesh.leave("y")
    mesh.remove("p-pg-2")
    mesh.make_all()
    mesh.report("high")
    assert mesh.state.groups.dynamic_count("p") == 2


def test_after_a_shrink_as_many_go_as_the_limit_asks_for():
    mesh = meshed(cpu=20, max_dynamic=3)
    for name in ("x", "y", "z"):
        slot(mesh, name, cpu=1)
    mesh.resize(pool("p", cpu=40, groups=GroupsSpec(max_dynamic=2)))
    assert len(victims(mesh, "high", cpu=2)) == 2
    mesh.announce("firm", "x", priority=20.0)
    assert len(victims(mesh, "high", cpu=2)) == 2
    mesh.announce("firmer", "y", priority=20.0)
    assert victims(mesh, "high", cpu=2) == "group_unplaceable"


def test_whoever_lives_in_a_reserved_group_makes_no_room():
    mesh = meshed(cpu=2, reserved=(SMALL,))
    slot(mesh, "low", priority=6.0)
    assert victims(mesh, "high", cpu=1, priority=9.0) == ["low"], "it is the closest fit"
    mesh = meshed(cpu=2, reserved=(SMALL,), entitled_above=0.5)
    slot(mesh, "low", priority=1.0)
    assert victims(mesh, "plain", cpu=2, priority=0.2) == "group_unplaceable"


def test_a_victim_of_another_pool_takes_its_group_along():
    mesh = meshed(cpu=4)
    mesh.resize(pool("q", cpu=8, groups=GroupsSpec(max_dynamic=1)))
    slot(mesh, "low", cpu=4)
    assert victims(mesh, "high", pool_name="q", cpu=4, priority=4.0) == "group_unplaceable"
    mesh.submit("high", "q", 9.0, cpu=4)
    mesh.leave("low")
    mesh.remove("p-pg-1")
    mesh.make_all()
    mesh.report("high")
    mesh.policy(protected_pools=frozenset({"q"}))
    assert victims(mesh, "higher", cpu=4, priority=50.0) == "group_unplaceable"


# incoming agents without a group


def test_an_incoming_agent_without_a_group_evicts_whoever_has_one():
    mesh = meshed(cpu=4)
    mesh.resize(pool("plain", cpu=8))
    slot(mesh, "low", cpu=4)
    mesh.submit("high", "plain", 9.0, cpu=3)
    assert not mesh.removes
    mesh.leave("low")
    mesh.remove("p-pg-1")
    mesh.report("high")
    assert mesh.state.agents["high"].group_id is None


def test_an_incoming_agent_without_a_group_spares_victims_where_idle_groups_do():
    mesh = meshed(cpu=6)
    mesh.resize(pool("plain", cpu=12))
    slot(mesh, "idle", cpu=2)
    for name in ("x", "y"):
        slot(mesh, name, "plain", cpu=2)
    mesh.complete("idle")
    assert len(victims(mesh, "high", pool_name="plain", cpu=4)) == 1
    mesh.submit("high", "plain", 9.0, cpu=4)
    (victim,) = mesh.ends
    mesh.leave(victim)
    mesh.remove("p-pg-1")
    mesh.report("high")


def test_an_incoming_agent_without_a_group_takes_gpus_that_a_group_held():
    mesh = Mesh(
        pool("p", cpu=8, gpu=2, groups=GroupsSpec(max_dynamic=2)),
        pool("plain", cpu=8, gpu=2),
        nodes=[node("a", cpu=8, gpu=2)],
    )
    for name in ("x", "y"):
        slot(mesh, name, cpu=1, gpu=1)
    mesh.submit("high", "plain", 9.0, cpu=1, gpu=2)
    for name in ("x", "y"):
        mesh.leave(name)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.report("high")
    assert mesh.state.cluster.nodes["a"].devices == [0, 0]


# who goes, and what becomes of the group


def test_a_lower_priority_goes_before_a_higher_one_whose_group_has_the_right_shape():
    """The documented order of victims wins; a group that can be taken does not change it."""
    mesh = meshed(cpu=8, max_dynamic=9)
    slot(mesh, "important", priority=8.0, cpu=2)
    slot(mesh, "cheap", priority=1.0, cpu=3)
    slot(mesh, "fixed", priority=9.0, cpu=3)
    assert victims(mesh, "new", priority=9.5) == ["cheap"]


def test_of_equal_scores_the_one_that_hands_its_group_over():
    mesh = meshed(cpu=8, max_dynamic=9)
    slot(mesh, "same shape", priority=1.0, cpu=2)
    slot(mesh, "newer", priority=1.0, cpu=3)
    slot(mesh, "fixed", priority=9.0, cpu=3)
    assert victims(mesh, "new") == ["same shape"]
    assert mesh.dry("new", cpu=2, priority=9.0).group_path == "preempted"


def test_an_incoming_agent_without_a_group_evicts_by_score_whoever_has_one():
    mesh = meshed(cpu=4, max_dynamic=9)
    mesh.resize(pool("plain", cpu=9))
    mesh.run("important", "plain", 3.0, cpu=2)
    slot(mesh, "grouped", priority=1.0, cpu=2)
    assert victims(mesh, "new", pool_name="plain", priority=20.0) == ["grouped"]


@pytest.mark.parametrize("many", [490, 505, 1200])
def test_a_group_over_several_nodes_finds_its_victims_however_many_there_are(many):
    """Those with the higher score make no room, because their node has no memory."""
    mesh = meshed(strategy="STRICT_SPREAD", policy={"cross_pool_priority_threshold": 3.0})
    small = [node(name, cpu=2, memory=10) for name in ("a", "b")]
    mesh.observe(*small, node("c", cpu=many / 2))
    mesh.resize(
        pool("p", cpu=40, memory=99, groups=GroupsSpec(max_dynamic=9, strategy="STRICT_SPREAD"))
    )
    mesh.resize(pool("plain", cpu=9999, memory=99))
    for name in ("on a", "on b"):
        mesh.run(name, "plain", 2.0, cpu=2, memory=10)
    for i in range(many):
        mesh.engine.handle(mesh.submission(f"x{i}", "plain", 1.0, cpu=0.5), mesh.now)
        start(mesh, f"x{i}")
    bundle = {"cpu": 2, "memory": 10}
    outcome = mesh.dry("new", priority=9.0, bundles=(bundle, bundle))
    assert not isinstance(outcome, Refused), outcome
    assert sorted(names(outcome.preempted)) == ["on a", "on b"]


def start(mesh, name):
    """The agent reports, without the checks of a mesh, which would take long for so many."""
    agent = mesh.state.agents[name]
    mesh.engine.handle(
        s.AgentReported(agent_name=name, incarnation=agent.incarnation, node_id=agent.node_id),
        mesh.now,
    )
