"""Which group an incoming agent gets without an eviction."""

from __future__ import annotations

import pytest

from schedulemesh.domain.labels import parse_selector
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages.outcomes import Pending
from schedulemesh.engine.placement.group_choice import best_reserved, entitled
from tests.engine.builders import Mesh, amount, node, pool, shape

SMALL, BIG = shape({"cpu": 2}), shape({"cpu": 4})


def meshed(cpu=8, nodes=("a",), **spec):
    mesh = Mesh(
        pool("p", cpu=40, groups=GroupsSpec(**{"max_dynamic": 4, **spec})),
        nodes=[node(name, cpu=cpu) for name in nodes],
    )
    mesh.make_all()
    return mesh


def path(mesh, name, **how):
    """How the task came to its group, which it lives in then."""
    outcome = mesh.submit(name, **{"cpu": 2, **how})
    if not isinstance(outcome, Pending):
        return outcome.reason
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.make_all()
    mesh.report(name)
    return mesh.state.agents[name].place.path


def group_of(mesh, name):
    return mesh.state.agents[name].group_id


def test_reserved_for_the_entitled_then_reused_then_created():
    mesh = meshed(reserved=(SMALL,))
    assert path(mesh, "low") == "created"
    mesh.complete("low")
    assert path(mesh, "high", priority=9.0) == "reserved"
    assert path(mesh, "next", priority=9.0) == "reused"
    assert path(mesh, "last", priority=9.0) == "created"
    counts = mesh.state.groups.counts["p"]
    assert (counts.created, counts.entered, counts.reused) == (3, 4, 1)


@pytest.mark.parametrize(
    ("priority", "labels", "way"),
    [
        (5.0, {}, "created"),
        (5.1, {}, "reserved"),
        (1.0, {"role": "train"}, "reserved"),
        (1.0, {"role": "rollout"}, "created"),
    ],
)
def test_entitled_by_priority_or_by_label(priority, labels, way):
    mesh = meshed(reserved=(SMALL,), entitled_labels=parse_selector({"role": "train"}))
    assert path(mesh, "x", priority=priority, labels=labels) == way


def test_an_agent_without_a_task_is_entitled_by_its_labels_alone():
    mesh = meshed(reserved=(SMALL,), entitled_labels=parse_selector({"role": "train"}))
    assert path(mesh, "x", task=False) == "created"
    assert path(mesh, "y", task=False, labels={"role": "train"}) == "reserved"


def test_only_the_closest_reserved_spec_is_given():
    mesh = meshed(cpu=9, reserved=(BIG, SMALL))
    assert path(mesh, "x", priority=9.0, cpu=1) == "reserved"
    assert mesh.state.groups.by_id[group_of(mesh, "x")].shape == SMALL
    assert path(mesh, "y", priority=9.0, cpu=1) == "created", "a big one is not for a small task"
    assert path(mesh, "z", priority=9.0, cpu=3) == "reserved"


def test_a_dynamic_group_is_for_its_own_shape_only():
    mesh = meshed()
    path(mesh, "x", cpu=4)
    mesh.complete("x")
    assert path(mesh, "y", cpu=2) == "created"
    assert path(mesh, "z", cpu=4) == "reused"


def test_the_longest_free_group_is_reused_first():
    mesh = meshed()
    for name in ("x", "y"):
        path(mesh, name)
    for name in ("y", "x"):
        mesh.now += 1.0
        mesh.complete(name)
    path(mesh, "z")
    assert group_of(mesh, "z") == "p-pg-2"


def test_no_more_dynamic_groups_than_the_limit():
    mesh = meshed(max_dynamic=1)
    assert path(mesh, "x") == "created"
    refused = mesh.submit("y", cpu=2)
    assert refused.reason == "group_unplaceable"
    assert "1 of at most 1 dynamic ones are there" in refused.error
    assert [holder.agent_name for holder in refused.holders] == ["x"]


def test_at_the_limit_an_idle_group_of_another_shape_makes_way():
    mesh = meshed(max_dynamic=2)
    path(mesh, "x")
    path(mesh, "y")
    mesh.complete("x")
    assert path(mesh, "z", cpu=3) == "created"
    assert sorted(mesh.state.groups.by_id) == ["p-pg-2", "p-pg-3"]


def test_after_a_shrink_as_many_idle_groups_make_way_as_the_limit_asks_for():
    mesh = meshed(max_dynamic=3)
    for name in ("x", "y", "z"):
        path(mesh, name)
    mesh.resize(pool("p", cpu=40, groups=GroupsSpec(max_dynamic=1)))
    for name in ("x", "y"):
        mesh.delete(name, False)
        mesh.leave(name)
    assert mesh.submit("new", cpu=3).reason == "group_unplaceable"
    mesh.delete("z", False)
    mesh.leave("z")
    assert path(mesh, "new", cpu=3) == "created"
    assert mesh.state.groups.dynamic_count("p") == 1


def test_idle_groups_make_way_for_room_the_longest_idle_first_and_no_more_than_needed():
    mesh = meshed(cpu=8, max_dynamic=9)
    for name, cpu in (("w", 1), ("x", 2), ("y", 2), ("z", 3)):
        path(mesh, name, cpu=cpu)
    for name in ("w", "x", "y"):
        mesh.now += 1.0
        mesh.complete(name)
    assert path(mesh, "new", cpu=4) == "created"
    assert sorted(mesh.state.groups.by_id) == ["p-pg-1", "p-pg-4", "p-pg-5"]


def test_one_idle_group_is_removed_where_it_serves_both_the_limit_and_the_room():
    mesh = meshed(cpu=4, nodes=("a", "b"), max_dynamic=3)
    for name, cpu in (("x", 1), ("y", 3), ("z", 4)):
        path(mesh, name, cpu=cpu)
    for name in ("x", "z"):
        mesh.now += 1.0
        mesh.complete(name)
    assert path(mesh, "new", cpu=3) == "created"
    assert sorted(mesh.state.groups.by_id) == ["p-pg-1", "p-pg-2", "p-pg-4"]


def test_a_dry_run_says_which_group_and_changes_nothing():
    mesh = meshed(reserved=(SMALL,))
    accepted = mesh.dry("x", priority=9.0, cpu=2)
    assert (accepted.group_id, accepted.group_path, accepted.node_id) == ("p-pg-1", "reserved", "a")
    accepted = mesh.dry("x", cpu=2)
    assert (accepted.group_id, accepted.group_path, accepted.node_id) == (None, "created", "a")


@pytest.mark.parametrize("priority", [9.0, 1.0])
def test_groups_on_cordoned_nodes_take_nobody(priority):
    mesh = meshed(nodes=("a", "b"), reserved=(SMALL,), reuse=True)
    path(mesh, "x")
    mesh.complete("x")
    mesh.cordon("a")
    assert path(mesh, "y", priority=priority) == "created"
    assert mesh.state.agents["y"].node_id == "b"
    mesh.cordon("a", False)
    assert path(mesh, "z", priority=priority) == ("reserved" if priority > 5 else "reused")


def test_several_bundles_live_where_the_strategy_says():
    mesh = meshed(nodes=("a", "b"), strategy="STRICT_SPREAD")
    assert path(mesh, "x", cpu=0, bundles=({"cpu": 2}, {"cpu": 3})) == "created"
    assert set(mesh.state.groups.by_id["p-pg-1"].node_ids) == {"a", "b"}
    mesh.complete("x")
    assert path(mesh, "y", cpu=0, bundles=({"cpu": 2}, {"cpu": 3})) == "reused"
    assert path(mesh, "z", cpu=0, bundles=({"cpu": 3}, {"cpu": 2})) == "created"


def test_a_reserved_spec_of_several_bundles_is_for_as_many():
    mesh = meshed(reserved=(shape({"cpu": 2}, {"cpu": 2}),))
    assert path(mesh, "x", priority=9.0, cpu=4) == "created"
    assert path(mesh, "y", priority=9.0, cpu=0, bundles=({"cpu": 1}, {"cpu": 2})) == "reserved"


def test_nodes_without_the_labels_are_no_place():
    mesh = meshed(node_labels={"zone": "x"})
    refused = mesh.submit("x", cpu=2)
    assert refused.reason == "cluster_out_of_resources"
    assert "no open node with the labels asked for" in refused.error


def test_what_no_node_could_ever_hold_is_refused_at_once():
    refused = meshed().submit("x", cpu=9)
    assert refused.reason == "cluster_out_of_resources"
    assert refused.short_node.cpu == 10_000
    many = meshed(nodes=("a", "b"), strategy="STRICT_SPREAD")
    refused = many.submit("x", bundles=({"cpu": 1},) * 3)
    assert refused.reason == "cluster_out_of_resources"
    assert "STRICT_SPREAD needs 3 nodes, and there are 2" in refused.error


def test_a_pool_without_dynamic_groups_says_why_it_has_none():
    mesh = meshed(reserved=(SMALL,), dynamic=False)
    refused = mesh.submit("x", priority=4.0, cpu=2)
    assert refused.reason == "group_unplaceable"
    assert "its reserved ones are not for this task" in refused.error
    assert "it makes no dynamic ones" in refused.error


def test_an_agent_of_a_pool_without_groups_takes_the_room_of_idle_ones():
    mesh = Mesh(
        pool("p", cpu=8, groups=GroupsSpec(max_dynamic=2)),
        pool("plain", cpu=8),
        nodes=[node("a", cpu=4)],
    )
    for name in ("x", "y"):
        path(mesh, name)
    mesh.now += 1.0
    mesh.complete("y")
    mesh.now += 1.0
    mesh.complete("x")
    mesh.submit("z", "plain", cpu=2)
    assert mesh.removes == {"p-pg-2"}
    mesh.remove("p-pg-2")
    mesh.report("z")


def test_a_group_that_is_being_made_for_nobody_is_waited_for_instead_of_making_another():
    mesh = Mesh(pool("p", cpu=9, groups=GroupsSpec(reserved=(SMALL,), max_dynamic=1)))
    mesh.observe(node("a", cpu=2))
    assert list(mesh.makes) == ["p-pg-1"]

    mesh.submit("x", priority=9.0, cpu=2)
    refused = mesh.submit("y", priority=9.0, cpu=2)

    assert list(mesh.makes) == ["p-pg-1"]
    assert refused.reason == "group_unplaceable", "one group has one agent"
    mesh.make_all()
    mesh.report("x")
    assert mesh.state.agents["x"].place.path == "reserved"


def test_nobody_is_evicted_where_the_group_is_being_made_again():
    mesh = meshed(reserved=(SMALL,), max_dynamic=1)
    path(mesh, "low", priority=1.0)
    mesh.remove("p-pg-1")
    mesh.submit("high", priority=9.0, cpu=2)
    assert not mesh.ends
    mesh.make_all()
    mesh.report("high")
    assert group_of(mesh, "high") == "p-pg-3"


@pytest.mark.parametrize(
    ("need", "fit"),
    [
        ({"cpu": 1}, "cpu 2"),
        ({"cpu": 2}, "cpu 2"),
        ({"cpu": 3}, "cpu 4"),
        ({"cpu": 1, "gpu": 1}, "cpu 1, gpu 1"),
        ({"cpu": 5}, None),
    ],
)
def test_the_closest_reserved_shape_is_the_only_one(need, fit):
    shapes = [BIG, SMALL, shape({"cpu": 1, "gpu": 1})]
    found = best_reserved(shapes, (amount(**need),))
    assert (None if found is None else str(found.bundles[0])) == fit


@pytest.mark.parametrize(
    ("priority", "labels", "may"),
    [
        (5.0, {}, False),
        (5.5, {}, True),
        (0.0, {"role": "train"}, True),
        (0.0, {"role": "rollout"}, False),
    ],
)
def test_entitled_by_priority_above_five_or_by_label(priority, labels, may):
    spec = GroupsSpec(entitled_labels=parse_selector({"role": "train"}))
    assert entitled(spec, priority, labels) is may


def test_without_a_label_rule_labels_entitle_nobody():
    assert not entitled(GroupsSpec(), 5.0, {"role": "train"})
    assert entitled(GroupsSpec(entitled_above=2.0), 3.0, {})


@pytest.mark.parametrize(
    ("how", "way"),
    [({"priority": 5.0}, "reserved"), ({"task": False}, "reserved"), ({"priority": 4.9}, None)],
)
def test_a_free_reserved_group_serves_whoever_is_just_below_the_entitled(how, way):
    mesh = meshed(reserved=(SMALL,), dynamic=False)
    if way is None:
        assert mesh.submit("x", cpu=2, **how).reason == "group_unplaceable"
    else:
        assert path(mesh, "x", **how) == way


def test_it_does_not_while_somebody_waits_and_is_preempted_group_to_whoever_is_entitled():
    mesh = meshed(reserved=(SMALL,), dynamic=False)
    assert path(mesh, "x", priority=5.0, class_key="c") == "reserved"
    assert mesh.submit("y", priority=5.0, cpu=2).reason == "group_unplaceable"
    high = mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    assert high.agent_name == "high"
    assert mesh.state.agents["high"].place.path == "preempted"
