"""Groups that are kept, expire, go, and are made again."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.admission.refusals import unplaced
from schedulemesh.engine.state.groups import GroupPhase
from tests.engine.builders import Mesh, node, pool, shape

SMALL = shape({"cpu": 2})


def meshed(cpu=8, agents=0, nodes=("a",), **spec):
    return Mesh(
        pool("p", cpu=20, agents=agents, groups=GroupsSpec(**{"max_dynamic": 4, **spec})),
        nodes=[node(name, cpu=cpu) for name in nodes],
    )


def slot(mesh, name, pool_name="p", **how):
    mesh.submit(name, pool_name, **{"cpu": 2, **how})
    mesh.make_all()
    return mesh.report(name)


def phases(mesh):
    return {group_id: group.phase.value for group_id, group in mesh.state.groups.by_id.items()}


def respec(mesh, **changes):
    spec = mesh.state.ledger.accounts["p"].spec
    groups = msgspec.structs.replace(spec.groups, **changes)
    return mesh.resize(msgspec.structs.replace(spec, groups=groups))


# reserved groups


def test_reserved_groups_are_made_with_the_pool():
    mesh = meshed(reserved=(SMALL, SMALL))
    assert phases(mesh) == {"p-pg-1": "creating", "p-pg-2": "creating"}
    mesh.make_all()
    assert mesh.state.cluster.nodes["a"].free.cpu == 40_000
    assert mesh.free().cpu == 200_000, "a reserved group takes no quota"


def test_reserved_groups_of_a_pool_that_came_before_the_nodes_are_made_when_those_are_seen():
    mesh = Mesh(pool("p", cpu=4, groups=GroupsSpec(reserved=(SMALL,))))
    assert not mesh.makes
    mesh.observe(node("a", cpu=2))
    assert list(mesh.makes) == ["p-pg-1"]


def test_a_reserved_group_without_room_waits_visibly_and_is_made_when_there_is_some():
    mesh = meshed(cpu=3, reserved=(SMALL, shape({"cpu": 2}, {"cpu": 2})), max_dynamic=0)
    mesh.make_all()
    (found,) = unplaced(mesh.state, "p")
    assert found[0] == shape({"cpu": 2}, {"cpu": 2})
    assert "bundle 0 (cpu 2)" in str(found[1])
    assert "lacks cpu 3" in str(found[1])

    mesh.observe(node("a", cpu=3), node("b", cpu=4))

    assert [order.node_ids for order in mesh.makes.values()] == [("b", "b")]
    mesh.make_all()
    assert unplaced(mesh.state, "p") == []


def test_what_ray_did_not_place_is_told_until_it_is_tried_again():
    mesh = meshed(reserved=(SMALL,))
    mesh.unmake("p-pg-1", "bundle 0 (cpu 2): not within 30 s")
    assert unplaced(mesh.state, "p") == [(SMALL, "bundle 0 (cpu 2): not within 30 s")]
    mesh.tick(31.0)
    mesh.make_all()
    assert unplaced(mesh.state, "p") == []


def test_an_idle_dynamic_group_makes_way_for_a_reserved_one():
    mesh = meshed(cpu=4)
    for name in ("x", "y"):
        slot(mesh, name)
        mesh.complete(name)
    slot(mesh, "z")

    respec(mesh, reserved=(SMALL,))
    assert list(mesh.makes)

    respec(mesh, reserved=(SMALL, SMALL))
    assert phases(mesh)["p-pg-1"] == "ready", "whoever lives in a group keeps it"


def test_an_idle_group_of_another_pool_makes_way_once_and_no_more():
    mesh = Mesh(
        pool("p", cpu=4, groups=GroupsSpec(max_dynamic=2)),
        pool("q", cpu=4),
        nodes=[node("a", cpu=4)],
    )
    for name in ("x", "y"):
        mesh.submit(name, cpu=2)
    mesh.make_all()
    for name in ("x", "y"):
        mesh.report(name)
        mesh.complete(name)
        mesh.now += 1.0

    mesh.resize(pool("q", cpu=4, groups=GroupsSpec(reserved=(SMALL,))))

    assert mesh.removes == {"p-pg-1"}
    assert mesh.tick(1.0).facts == ()
    mesh.remove("p-pg-1")
    mesh.make_all()
    assert phases(mesh) == {"p-pg-2": "ready", "q-pg-3": "ready"}


# what stays when an agent ends


@pytest.mark.parametrize("reuse", [True, False])
def test_a_dynamic_group_stays_for_the_next_one_only_with_reuse(reuse):
    mesh = meshed(reuse=reuse)
    slot(mesh, "x")
    mesh.complete("x")
    assert phases(mesh) == {"p-pg-1": "ready" if reuse else "ending"}


@pytest.mark.parametrize(
    ("destroy", "reuse", "stays"),
    [(None, True, True), (None, False, False), (True, True, False), (False, False, True)],
)
def test_whoever_deletes_an_agent_says_what_becomes_of_its_dynamic_group(destroy, reuse, stays):
    mesh = meshed(reuse=reuse)
    slot(mesh, "x")
    mesh.delete("x", destroy)
    mesh.leave("x")
    assert phases(mesh) == {"p-pg-1": "ready" if stays else "ending"}
    assert mesh.removes == (set() if stays else {"p-pg-1"})


def test_the_last_word_on_the_group_of_an_ending_agent_counts():
    mesh = meshed()
    slot(mesh, "x")
    mesh.delete("x")
    mesh.delete("x", True)
    mesh.delete("x")
    mesh.leave("x")
    assert phases(mesh) == {"p-pg-1": "ending"}


@pytest.mark.parametrize("destroy", [None, False])
def test_a_reserved_group_is_kept_unless_it_is_to_be_destroyed(destroy):
    mesh = meshed(reserved=(SMALL,), reuse=False)
    mesh.make_all()
    slot(mesh, "x", priority=9.0)
    mesh.delete("x", destroy)
    mesh.leave("x")
    assert mesh.state.groups.by_id["p-pg-1"].free


@pytest.mark.parametrize("how", ["ensured", "resized"])
def test_a_destroyed_reserved_group_stays_gone_until_its_pool_is_ensured_or_resized(how):
    mesh = meshed(reserved=(SMALL,))
    mesh.make_all()
    slot(mesh, "x", priority=9.0)
    mesh.delete("x", True)
    mesh.leave("x")
    mesh.remove("p-pg-1")
    mesh.tick(100.0)
    mesh.observe(node("a", cpu=8), node("b", cpu=8))
    assert phases(mesh) == {}
    assert unplaced(mesh.state, "p") == []

    if how == "ensured":
        assert mesh.resize(mesh.state.ledger.accounts["p"].spec).change == "unchanged"
    else:
        respec(mesh, max_dynamic=3)
    assert phases(mesh) == {"p-pg-2": "creating"}


@pytest.mark.parametrize("reserved", [True, False])
def test_a_group_that_its_pool_gave_up_goes_with_its_agent_even_where_it_was_to_stay(reserved):
    kept = (shape({"cpu": 2}),) if reserved else ()
    mesh = Mesh(
        pool("p", cpu=2, groups=GroupsSpec(reserved=kept, max_dynamic=1)), nodes=[node("a", cpu=2)]
    )
    mesh.make_all()
    mesh.submit("x", priority=9.0, cpu=2)
    mesh.make_all()
    mesh.report("x")
    mesh.resize(pool("p", cpu=2))
    mesh.delete("x", destroy_group=False)
    mesh.leave("x")
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert mesh.state.groups.by_id == {}
    assert mesh.submit("y", cpu=2).agent_name == "y"


def test_a_reserved_group_that_its_pool_has_enough_of_goes_even_where_it_was_to_stay():
    mesh = Mesh(
        pool("p", cpu=4, groups=GroupsSpec(reserved=(shape({"cpu": 2}),))),
        nodes=[node("a", cpu=2)],
    )
    mesh.make_all()
    mesh.run("x", priority=9.0, cpu=2)
    mesh.resize(pool("p", cpu=4, groups=GroupsSpec()))
    mesh.delete("x", destroy_group=False)
    mesh.leave("x")
    assert len(mesh.removes) == 1


def test_a_destroyed_group_that_was_one_too_many_is_not_missed():
    mesh = meshed(reserved=(SMALL, SMALL))
    mesh.make_all()
    for name in ("x", "y"):
        mesh.run(name, priority=9.0, cpu=2)
    respec(mesh, reserved=(SMALL,))
    mesh.delete("x", True)
    mesh.leave("x")
    mesh.remove("p-pg-1")
    mesh.complete("y")
    assert mesh.state.groups.by_id["p-pg-2"].free
    assert not mesh.state.groups.dropped


def test_a_group_that_is_being_made_goes_with_its_agent_where_that_is_asked():
    mesh = meshed()
    mesh.submit("x", cpu=2)
    mesh.delete("x", True)
    assert mesh.removes == {"p-pg-1"}
    mesh.remove("p-pg-1")
    assert mesh.state.groups.by_id == {}


# time, size, target


def test_a_dynamic_group_goes_when_nobody_has_used_it_for_its_idle_time():
    mesh = meshed(idle_s=60.0, reserved=(shape({"cpu": 1}),))
    slot(mesh, "x")
    slot(mesh, "y", cpu=1)
    mesh.complete("x")
    mesh.tick(59.0)
    mesh.complete("y")
    assert not mesh.removes
    mesh.tick(1.0)
    assert mesh.removes == {"p-pg-2"}, "not the reserved one, and not the one just left"


def test_a_pool_that_shrinks_loses_free_groups_at_once_and_others_when_they_are_left():
    mesh = meshed(reserved=(SMALL,))
    for name in ("x", "y"):
        slot(mesh, name)
    mesh.complete("y")
    respec(mesh, reserved=(), max_dynamic=0)
    assert mesh.removes == {"p-pg-1", "p-pg-3"}
    mesh.complete("x")
    assert mesh.removes == {"p-pg-1", "p-pg-2", "p-pg-3"}


def test_groups_of_a_pool_that_keeps_none_any_more_go():
    mesh = meshed(reserved=(SMALL,))
    mesh.make_all()
    slot(mesh, "x")
    mesh.resize(pool("p", cpu=20))
    assert mesh.removes == {"p-pg-1"}
    mesh.complete("x")
    assert mesh.removes == {"p-pg-1", "p-pg-2"}
    mesh.submit("y", cpu=2)
    assert mesh.starts["y"].group_id is None


def test_the_target_is_kept_filled_by_groups_of_the_default_agent():
    mesh = meshed(cpu=30, agents=4, fill_target=True, reserved=(SMALL,), max_dynamic=9, idle_s=5.0)
    mesh.make_all()
    assert len(phases(mesh)) == 4
    made = {str(group.shape) for group in mesh.state.groups.by_id.values() if not group.reserved}
    assert made == {"[cpu 5]"}
    mesh.tick(100.0)
    assert set(phases(mesh).values()) == {"ready"}, "those for the target do not expire"
    mesh.remove("p-pg-2")
    assert len(mesh.makes) == 1


def test_filling_up_stops_at_the_limit_and_where_there_is_no_room():
    assert len(meshed(cpu=30, agents=4, fill_target=True, max_dynamic=2).makes) == 2
    assert len(meshed(cpu=6, agents=4, fill_target=True).makes) == 1


def test_without_reuse_a_target_is_filled_by_groups_that_nobody_has_used():
    mesh = meshed(cpu=5, agents=4, fill_target=True, reuse=False)
    mesh.make_all()
    slot(mesh, "x", cpu=5)
    mesh.complete("x")
    assert mesh.removes == {"p-pg-1"}
    mesh.remove("p-pg-1")
    assert list(mesh.makes) == ["p-pg-2"]
    mesh.make_all()
    assert mesh.state.groups.by_id["p-pg-2"].free


def test_the_target_is_not_filled_with_room_that_is_being_cleared_for_somebody():
    mesh = Mesh(
        pool("p", cpu=8, agents=2, groups=GroupsSpec(max_dynamic=2, fill_target=True)),
        pool("plain", cpu=8),
        nodes=[node("a", cpu=8)],
    )
    mesh.make_all()
    mesh.submit("x", "plain", cpu=8)
    for group_id in sorted(mesh.removes):
        mesh.tick(1.0)
        mesh.remove(group_id)
    assert not mesh.makes
    mesh.report("x")


def test_a_group_is_ordered_once():
    mesh = meshed(reserved=(SMALL,))
    assert mesh.state.groups.by_id["p-pg-1"].phase is GroupPhase.CREATING
    assert mesh.tick(1.0).instructions == ()
    mesh.make_all()
    assert mesh.tick(1.0).instructions == ()
