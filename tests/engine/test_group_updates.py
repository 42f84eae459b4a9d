"""How facts change the book of groups and the room that they hold."""

from __future__ import annotations

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from tests.engine.builders import Mesh, amount, node, on, pool, shape

PAIR = shape({"cpu": 1, "gpu": 1}, {"cpu": 2}, strategy="STRICT_SPREAD")


def planned(*, agent=None, reserved=False):
    state = MeshState()
    state.evolve(
        f.PoolEnsured(spec=pool("p", cpu=9, gpu=9, groups=GroupsSpec(reserved=(PAIR,))), at=0.0)
    )
    state.evolve(f.NodeSeen(report=node("a", cpu=4, gpu=2), at=0.0))
    state.evolve(f.NodeSeen(report=node("b", cpu=4), at=0.0))
    state.evolve(
        f.GroupPlanned(
            group_id="g",
            pool_name="p",
            shape=PAIR,
            node_ids=("a", "b"),
            at=1.0,
            reserved=reserved,
            agent_name=agent,
        )
    )
    return state, state.groups.by_id["g"]


def grow(state):
    grown = f.GroupGrew(group_id="g", bundle=0, held=amount(cpu=1), devices=on((0, 1)))
    state.evolve(grown)
    state.evolve(f.GroupGrew(group_id="g", bundle=1, held=amount(cpu=2)))


def free(state):
    return [(found.free.cpu // 10_000, found.devices) for found in state.cluster.nodes.values()]


def test_a_planned_group_holds_what_it_has_grown_by():
    state, group = planned()
    assert (group.phase, state.groups.next_number) == (GroupPhase.PLANNED, 2)
    grow(state)
    assert free(state) == [(3, [0, 10_000]), (2, [])]
    state.evolve(f.GroupEnded(group_id="g", at=2.0))
    assert free(state) == [(4, [10_000, 10_000]), (4, [])]


def test_from_whole_to_ready_to_gone():
    state, group = planned(reserved=True)
    grow(state)
    state.evolve(f.GroupWhole(group_id="g"))
    assert group.coming
    assert not state.groups.lacking("p")
    state.evolve(f.GroupReady(group_id="g", at=3.0))
    assert group.free
    assert (group.made, group.idle_since) == (True, 3.0)
    state.evolve(f.GroupEnding(group_id="g"))
    assert not group.free
    assert state.groups.lacking("p") == {PAIR: 1}
    state.evolve(f.GroupEnded(group_id="g", at=4.0))
    counts = state.groups.counts["p"]
    assert (counts.created, counts.destroyed, counts.error) == (1, 1, "")
    state.groups.check()


def test_a_group_that_was_never_placed_was_not_destroyed():
    state, _ = planned()
    state.evolve(f.GroupWhole(group_id="g"))
    state.evolve(f.GroupEnded(group_id="g", at=4.0, error="no room"))
    counts = state.groups.counts["p"]
    assert (counts.destroyed, counts.failed_at, counts.error) == (0, 4.0, "no room")


def test_a_dropped_group_is_wanted_again_when_its_pool_is_ensured():
    state, _ = planned(reserved=True)
    state.evolve(f.GroupEnding(group_id="g", dropped=True))
    assert not state.groups.lacking("p")
    state.evolve(f.PoolEnsured(spec=state.ledger.accounts["p"].spec, at=0.0))
    assert state.groups.lacking("p") == {PAIR: 1}
    state.groups.check()


def test_a_claimed_group_is_free_for_nobody_else():
    state, group = planned()
    grow(state)
    state.evolve(f.GroupWhole(group_id="g"))
    state.evolve(f.GroupReady(group_id="g", at=2.0))
    state.evolve(f.GroupClaimed(group_id="g", for_agent="x"))
    assert not group.free
    assert not state.groups.idle()


def test_waiting_is_counted_from_admission_to_entry():
    mesh = Mesh(pool("p", cpu=4, groups=GroupsSpec(max_dynamic=1)), nodes=[node("a", cpu=4)])
    mesh.submit("x", cpu=2)
    mesh.now += 3.0
    mesh.make_all()
    mesh.report("x")
    mesh.complete("x")
    mesh.submit("y", cpu=2)
    counts = mesh.state.groups.counts["p"]
    assert (counts.entered, counts.waited_s, counts.reused) == (2, 3.0, 1)


def test_an_agent_tells_which_devices_its_group_has():
    mesh = Mesh(
        pool("p", cpu=4, gpu=2, groups=GroupsSpec(max_dynamic=2)), nodes=[node("a", cpu=4, gpu=2)]
    )
    mesh.submit("x", cpu=1, gpu=1)
    mesh.make_all()
    mesh.report("x", devices=on((1, 1)))
    assert mesh.state.cluster.nodes["a"].devices == [10_000, 0]
    mesh.complete("x")
    assert mesh.state.cluster.nodes["a"].devices == [10_000, 0], "the group keeps them"


def test_devices_of_a_smaller_agent_say_nothing_of_its_group():
    spec = GroupsSpec(reserved=(shape({"cpu": 1, "gpu": 2}),))
    mesh = Mesh(pool("p", cpu=4, gpu=2, groups=spec), nodes=[node("a", cpu=4, gpu=2)])
    mesh.make_all()
    mesh.submit("x", priority=9.0, cpu=1, gpu=1)
    mesh.report("x", devices=on((1, 1)))
    assert mesh.state.cluster.nodes["a"].devices == [0, 0]
