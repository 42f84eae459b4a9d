"""What would be if agents and groups were removed, and the bounds that follow from it."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.resources import sum_of
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.scenario import Demand, Removal, Scenario
from schedulemesh.engine.preemption.candidates import Candidates
from schedulemesh.engine.preemption.node_summary import place_of, summary_of
from schedulemesh.engine.preemption.victims import VictimAgents
from schedulemesh.engine.state.preemption_rules import Incoming
from schedulemesh.engine.state.tasks import TaskClass
from tests.engine.builders import Mesh, amount, node, pool, shape


def victims_of(mesh, priority=9.0):
    state, incoming = mesh.state, Incoming(priority=priority, pool_name="p")
    agents = VictimAgents(state, Candidates(state.preemption, state.running, incoming, mesh.now))
    return {victim.name: victim for victim in agents.in_order(TaskClass.has_tasks)}


def scenario(mesh, **demand):
    return Scenario(Room(mesh.state.cluster, waits=True), Demand(**demand))


def full():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2), node("b", cpu=2)])
    for name, node_id in (("x", "a"), ("y", "a"), ("z", "b")):
        mesh.run(name, cpu=1, node_id=node_id)
    mesh.run("fixed", priority=20.0, cpu=1, node_id="b")
    return mesh


def test_quota_and_room_are_both_needed():
    mesh = full()
    victims = victims_of(mesh)
    trial = scenario(mesh, short_quota=amount(cpu=2), shape=shape({"cpu": 2}))
    trial.release(victims["x"])
    assert (trial.short_quota, trial.has_place()) == (amount(cpu=1), False)
    trial.release(victims["z"])
    assert (trial.short_quota, trial.has_place()) == (amount(), False)
    trial.take_back(victims["z"])
    trial.release(victims["y"])
    assert trial.enough()
    assert trial.placement().node_ids == ("a",)


def test_a_placement_is_void_once_what_it_needs_is_taken_back():
    mesh = full()
    victims = victims_of(mesh)
    trial = scenario(mesh, shape=shape({"cpu": 1}))
    trial.release(victims["x"])
    trial.release(victims["z"])
    first = trial.placement().node_ids
    trial.take_back(victims["x" if first == ("a",) else "z"])
    assert trial.placement().node_ids == (("b",) if first == ("a",) else ("a",))
    trial.reset()
    assert trial.placement() is None
    assert not trial.is_released("x")


def test_where_a_place_is_known_only_quota_counts():
    mesh = full()
    trial = scenario(mesh, short_quota=amount(cpu=1), needs_place=False)
    assert not trial.enough()
    trial.release(victims_of(mesh)["z"])
    assert trial.enough()


def test_too_many_groups_must_be_removed_even_where_there_is_room():
    mesh = Mesh(pool("p", cpu=8, groups=GroupsSpec(max_dynamic=1)), nodes=[node("a", cpu=8)])
    mesh.submit("x", cpu=2)
    mesh.make_all()
    mesh.report("x")
    trial = scenario(mesh, shape=shape({"cpu": 4}), pool_name="p", too_many_groups=1)
    assert trial.initial is not None
    assert not trial.enough()
    victim = victims_of(mesh)["x"]
    assert victim.group is mesh.state.groups.by_id["p-pg-1"]
    trial.release(victim)
    assert trial.enough()
    trial.reset()
    trial.release(victim.group)
    assert trial.enough()


def test_a_group_that_is_preempted_group_is_a_place():
    mesh = Mesh(pool("p", cpu=8, groups=GroupsSpec(max_dynamic=1)), nodes=[node("a", cpu=8)])
    mesh.submit("x", cpu=2)
    mesh.make_all()
    trial = scenario(mesh, shape=None)
    assert not trial.enough()
    trial.release(Removal(name="x", preempted_group=mesh.state.groups.by_id["p-pg-1"]))
    assert trial.enough()
    trial.reset()
    assert not trial.enough()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 4.0, 30.0]), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 6),
)
def test_no_victims_on_a_node_come_before_its_bound(agents, lack):
    """Whichever agents leave: if they free what is lacking, they do not come before the bound."""
    mesh = Mesh(pool("p", cpu=99), nodes=[node("a", cpu=sum(cpu for _, cpu, _ in agents))])
    for number, (priority, cpu, waits) in enumerate(agents):
        mesh.run(f"t{number}", priority=priority, cpu=cpu, duration=50.0 if waits else None)
        mesh.tick(1.0)
    lacking = amount(cpu=lack)
    summary = summary_of(mesh.state, mesh.state.cluster.nodes["a"])
    bound = summary.bound(lacking, "a", mesh.now)
    victims = list(victims_of(mesh, priority=1e6).values())
    enough = [
        chosen
        for count in range(1, len(victims) + 1)
        for chosen in combinations(victims, count)
        if lacking.fits(sum_of(victim.quota for victim in chosen))
    ]
    assert (bound is None) == (not enough)
    assert all(bound <= place_of(chosen, "a") for chosen in enough)
    allowed = [c for c in mesh.state.running.classes.values() if c.priority < 9.0]
    freed = summary.freed_by(frozenset(allowed))
    assert freed == sum_of(v.quota for v in victims if v.tier < 9.0)
