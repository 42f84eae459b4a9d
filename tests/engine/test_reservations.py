"""Reserved starts: which start the first task of a queue gets, and what later tasks may do until then."""

from __future__ import annotations

import os
from itertools import product

import pytest
from hypothesis import assume, settings
from hypothesis import given as given_that
from hypothesis import strategies as st
from msgspec import structs

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.admission import reservations
from schedulemesh.engine.messages.outcomes import Pending, Queued
from schedulemesh.engine.messages.stimuli import AgentsMeasured, PoolRequested
from tests.engine.builders import Mesh, node, pool, shape

NODES = ("n1", "n2", "n3")


def reserved(mesh, task_id="gang"):
    """The reserved start of a task: when, on which nodes, in which group."""
    found = mesh.state.queue.by_id[task_id].reservation
    return found.at, tuple(sorted(found.node_ids)), found.group_id


def small(mesh, name, node_id, duration, cpu=2, pool_name="p"):
    """A task that runs on this node."""
    mesh.run(name, pool_name, cpu=cpu, priority=9, duration=duration, node_id=node_id)


def queue_gang(mesh, name="gang", *, bundles=2, cpu=2, strategy="STRICT_SPREAD", **how):
    """A gang that waits."""
    return mesh.queue(
        name, bundles=[{"cpu": cpu}] * bundles, payload=GangPayload(strategy=strategy), **how
    )


@pytest.fixture
def three():
    """Three nodes of two CPUs; a pool that may use them all; tasks that end after 10, 30 and 20 seconds."""
    mesh = Mesh(pool("p", cpu=6), nodes=[node(n, cpu=2) for n in NODES])
    for n, duration in zip(NODES, (10.0, 30.0, 20.0), strict=True):
        small(mesh, f"on-{n}", n, duration)
    return mesh


# without


def test_in_a_greedy_pool_nothing_is_kept_free_for_the_first_task(three):
    three.handle(PoolRequested(spec=structs.replace(pool("p", cpu=6), queueing="greedy")))
    queue_gang(three)
    three.tick()
    assert three.state.queue.by_id["gang"].reservation is None
    three.now += 10
    three.complete("on-n1")
    three.queue("long", cpu=2, duration=100.0)
    assert list(three.starts) == ["long"]


# gangs


def test_a_gang_gets_a_start_when_enough_nodes_are_free(three):
    queue_gang(three)
    three.tick()
    assert reserved(three) == (1020.0, ("n1", "n3"), None)


def test_a_gang_on_one_node_needs_all_of_its_room_there():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("n1", cpu=4), node("n2", cpu=4)])
    for n, duration in (("n1", 10.0), ("n1", 40.0), ("n2", 30.0), ("n2", 20.0)):
        small(mesh, f"{n}-{duration:g}", n, duration)
    queue_gang(mesh, strategy="STRICT_PACK")
    mesh.tick()
    assert reserved(mesh) == (1030.0, ("n2", "n2"), None)


def test_small_tasks_do_not_starve_a_gang(three):
    queue_gang(three)
    three.tick()
    three.now += 10
    three.complete("on-n1")
    assert three.queue("long", cpu=2, duration=11.0).position == 2
    assert three.queue("short", cpu=2, duration=10.0, priority=4).position == 0
    three.report("short")
    three.now += 10
    three.complete("short")
    three.complete("on-n3")
    three.make_all()
    assert list(three.starts) == ["gang"]


def test_another_pool_may_not_take_its_nodes_either(three):
    three.resize(pool("q", cpu=6))
    queue_gang(three)
    three.tick()
    three.complete("on-n2")
    assert three.queue("long", "q", cpu=2).position == 0
    assert three.starts["long"].node_id == "n2"
    three.complete("on-n1")
    assert three.queue("more", "q", cpu=2).position == 1


def test_a_later_gang_is_placed_beside_the_reserved_nodes():
    mesh = Mesh(
        pool("p", cpu=8), pool("q", cpu=4), nodes=[node(f"n{i}", cpu=2) for i in range(1, 5)]
    )
    for i, duration in ((1, 10.0), (2, 20.0), (3, 30.0), (4, None)):
        small(mesh, f"r{i}", f"n{i}", duration)
    queue_gang(mesh, bundles=3)
    mesh.tick()
    assert reserved(mesh)[1] == ("n1", "n2", "n3")
    for i in (1, 4):
        mesh.complete(f"r{i}")
    mesh.queue("other", "q", bundles=[{"cpu": 1}] * 2, payload=GangPayload(strategy="PACK"))
    (group,) = mesh.state.groups.by_id.values()
    assert (group.pool_name, group.node_ids) == ("q", ("n4", "n4"))


def test_a_gang_that_runs_ends_as_one():
    mesh = Mesh(pool("p", cpu=6), nodes=[node(n, cpu=2) for n in NODES])
    mesh.submit(
        "first",
        bundles=[{"cpu": 2}] * 3,
        payload=GangPayload(strategy="STRICT_SPREAD"),
        duration=50.0,
    )
    mesh.make_all()
    mesh.report("first")
    queue_gang(mesh)
    mesh.tick()
    assert reserved(mesh)[0] == 1050.0


def test_without_estimates_others_pass_a_gang_for_a_while_only(three):
    three.resize(pool("p", cpu=10))
    for n in NODES:
        three.complete(f"on-{n}")
        small(three, f"again-{n}", n, None)
    queue_gang(three)
    three.tick()
    at, node_ids, _ = reserved(three)
    assert (at, len(node_ids)) == (None, 2)
    three.now += three.state.queue.policy.backfill_limit_s
    three.tick()
    assert reserved(three)[1] == node_ids, "it keeps its nodes"
    three.complete(f"again-{node_ids[0]}")
    assert three.queue("small", cpu=1).position == 2
    three.complete(f"again-{node_ids[1]}")
    three.make_all()
    assert list(three.starts) == ["gang"]


def test_the_places_of_many_gangs_are_sought_by_turns(monkeypatch):
    monkeypatch.setattr(reservations, "_GROUP_SEARCHES", 1)
    names = ("p", "q")
    mesh = Mesh(*(pool(n, cpu=4) for n in names), nodes=[node("n1", cpu=4), node("n2", cpu=4)])
    for name, node_id in zip(names, ("n1", "n2"), strict=True):
        small(mesh, f"long-{name}", node_id, 100.0, cpu=4, pool_name=name)
        mesh.queue(
            f"gang-{name}",
            name,
            bundles=[{"cpu": 2}] * 2,
            payload=GangPayload(strategy="STRICT_PACK"),
        )
    mesh.tick()
    assert [reserved(mesh, f"gang-{n}")[0] for n in names] == [1100.0, 1100.0]
    mesh.cordon("n1")
    for _ in names:
        mesh.tick(1)
    assert [reserved(mesh, f"gang-{n}")[1] for n in names] == [("n2", "n2")] * 2


def test_a_start_that_is_due_is_not_reserved_anew_on_each_tick(three, monkeypatch):
    """Its room is free by estimates, and something else keeps it from starting."""
    queue_gang(three)
    three.tick()
    due = reservations.Reservation(at=1000.0, node_ids=("n1", "n3"))
    monkeypatch.setattr(
        reservations,
        "_start",
        lambda state, projection, *_: structs.replace(due, at=projection.ends.now),
    )
    three.tick(1)
    seen = len(three.facts)
    for _ in range(3):
        three.tick(1)
    assert three.facts[seen:] == []
    assert reserved(three) == (1001.0, ("n1", "n3"), None)


def test_a_task_that_would_delay_one_before_it_has_no_start_before_that():
    """The first task of one pool has to leave a node to that of another; the rest is free for the next."""
    mesh = Mesh(
        pool("p", cpu=6),
        pool("q", cpu=4, gpu=2),
        nodes=[node("n1", cpu=2), node("n2", cpu=4, gpu=2), node("n3", cpu=2)],
    )
    mesh.order_by(backfill_limit_s=0.0)
    mesh.run("running", "p", cpu=1, priority=9, node_id="n2")
    mesh.queue("large", "p", cpu=4, priority=8)
    mesh.tick(1)
    mesh.queue("first", "q", cpu=1, gpu=2, priority=5)
    mesh.tick(1)
    assert mesh.state.queue.by_id["first"].reservation is None, "that of the large one is not known"
    mesh.tick(1)
    assert mesh.state.queue.by_id["first"].reservation is None
    outcome = mesh.submit("next", "q", cpu=2, priority=5)
    assert isinstance(outcome, Pending), outcome
    assert mesh.starts["next"].node_id in ("n1", "n3")


# placement groups


def grouped(**more):
    """A pool of eight CPUs that runs its tasks in placement groups, on one node."""
    mesh = Mesh(pool("p", cpu=8, groups=GroupsSpec(**more)), nodes=[node("n1", cpu=8)])
    mesh.make_all()
    return mesh


def in_group(mesh, name, duration, **how):
    """A task that runs in a placement group."""
    mesh.submit(name, duration=duration, **how)
    mesh.make_all()
    return mesh.report(name)


def test_a_task_waits_for_the_group_of_one_that_ends():
    mesh = grouped(reserved=(shape({"cpu": 2}),), max_dynamic=0)
    in_group(mesh, "a", 40.0, cpu=2, priority=9)
    mesh.queue("t", cpu=2, priority=8)
    mesh.tick()
    assert reserved(mesh, "t") == (1040.0, (), mesh.state.agents["a"].group_id)


def test_a_task_waits_until_its_pool_may_have_another_group():
    mesh = grouped(max_dynamic=2)
    in_group(mesh, "a", 40.0, cpu=2, priority=9)
    in_group(mesh, "b", 20.0, cpu=2, priority=9)
    mesh.queue("t", cpu=4)
    mesh.tick()
    assert reserved(mesh, "t") == (1020.0, ("n1",), None)


def test_later_tasks_do_not_take_the_last_group_that_a_pool_may_have():
    mesh = grouped(max_dynamic=2)
    in_group(mesh, "a", 40.0, cpu=2, priority=9)
    in_group(mesh, "b", 20.0, cpu=2, priority=9)
    mesh.queue("t", cpu=7)
    mesh.tick()
    assert reserved(mesh, "t")[0] == 1040.0
    mesh.now += 5
    mesh.complete("a")
    mesh.tick()
    assert reserved(mesh, "t")[0] == 1020.0
    assert mesh.queue("reuses", cpu=2).position == 2
    assert mesh.queue("short", cpu=2, duration=15.0, priority=4).position == 0


def test_unused_groups_count_as_removed_for_a_task_on_a_node():
    mesh = Mesh(
        pool("p", cpu=8, groups=GroupsSpec(max_dynamic=2)),
        pool("q", cpu=8),
        nodes=[node("n1", cpu=8)],
    )
    in_group(mesh, "a", 40.0, cpu=4)
    small(mesh, "b", "n1", 20.0, cpu=4, pool_name="q")
    mesh.complete("a")
    mesh.queue("t", "q", cpu=8)
    mesh.tick()
    assert reserved(mesh, "t")[:2] == (1020.0, ("n1",))


# agents with several tasks


def test_an_agent_with_two_tasks_frees_its_quota_once_when_the_last_one_ends():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    mesh.run("two", cpu=2, priority=9, duration=30.0)
    mesh.announce("second", "two", priority=9, duration=10.0)
    mesh.run("one", cpu=2, priority=9, duration=50.0)
    mesh.queue("big", cpu=4)
    mesh.queue("half", cpu=2, priority=4)
    mesh.tick()
    assert reserved(mesh, "big")[0] == 1050.0
    mesh.cancel("big")
    mesh.tick()
    assert reserved(mesh, "half")[0] == 1030.0


def test_an_agent_frees_nothing_at_a_known_time_if_one_of_its_tasks_has_no_estimate():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("n1", cpu=8)])
    mesh.run("two", cpu=2, priority=9, duration=30.0)
    mesh.announce("second", "two", priority=9)
    mesh.queue("t", cpu=2)
    mesh.tick()
    assert reserved(mesh, "t")[0] is None


def test_quota_that_is_on_loan_comes_back_when_its_borrower_ends():
    mesh = Mesh(
        pool("p", cpu=4, lending={"cohort": "c"}),
        pool("q", cpu=0, lending={"cohort": "c"}),
        nodes=[node("n1", cpu=8)],
    )
    mesh.run("own", cpu=2, priority=9, duration=50.0)
    mesh.run("loan", "q", cpu=2, priority=9, duration=20.0)
    mesh.queue("t", cpu=2, more={"may_preempt": False})
    mesh.tick()
    assert reserved(mesh, "t")[0] == 1020.0


def test_a_task_whose_agent_is_being_started_ends_too():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("n1", cpu=8)])
    mesh.submit("starting", cpu=2, priority=9, duration=30.0)
    mesh.queue("t", cpu=2)
    mesh.tick()
    assert reserved(mesh, "t")[0] == 1030.0


def test_a_kind_that_the_reserved_start_does_not_need_is_not_kept_free_for_it():
    mesh = Mesh(pool("p", cpu=2, gpu=1), pool("q", gpu=1), nodes=[node("n1", cpu=8, gpu=4)])
    mesh.run("gone", "q", gpu=0.4)
    mesh.preempt(agent_name="gone", for_pool="p")
    mesh.leave("gone")
    mesh.run("r", cpu=2, gpu=0.4, priority=9, duration=30.0)
    mesh.queue("head", cpu=2)
    mesh.tick()
    assert reserved(mesh, "head")[0] == 1030.0
    assert isinstance(mesh.submit("by-hold", gpu=1, priority=4), Pending)


# any history

needs = st.fixed_dictionaries(
    {
        "cpu": st.integers(1, 3),
        "bundles": st.integers(1, 3),
        "strategy": st.sampled_from(["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"]),
    }
)
tasks = st.fixed_dictionaries(
    {
        "at": st.integers(1, 40),
        "pool_name": st.sampled_from(["p", "q"]),
        "need": needs,
        "duration": st.sampled_from([None, 3.0, 10.0, 25.0, 60.0]),
    }
)
first_tasks = st.fixed_dictionaries(
    {
        "cpu": st.integers(1, 3),
        "duration": st.sampled_from([5.0, 12.0, 20.0, 31.0, None]),
    }
)


def earliest_by_hand(mesh, need, quota):
    """The first time at which a gang fits if tasks end as estimated, by trying all; None: never."""
    running = list(mesh.state.running.by_id.values())
    now = mesh.now
    for at in [now, *sorted({task.ends_at for task in running if task.ends_at is not None})]:
        left = [task for task in running if task.ends_at is None or task.ends_at > at]
        used = sum(task.resources.cpu for task in left) // UNIT
        free = {
            n: mesh.state.cluster.nodes[n].total.cpu // UNIT
            - sum(
                task.resources.cpu // UNIT
                for task in left
                if mesh.state.agents[task.agent_name].node_id == n
            )
            for n in NODES
        }
        if quota - used >= need["cpu"] * need["bundles"] and fits_by_hand(free, **need):
            return at
    return None


def fits_by_hand(free, cpu, bundles, strategy):
    """Whether some choice of nodes takes all bundles."""
    for chosen in product(NODES, repeat=bundles):
        kinds = len(set(chosen))
        if (strategy == "STRICT_PACK" and kinds > 1) or (
            strategy == "STRICT_SPREAD" and kinds < bundles
        ):
            continue
        if all(chosen.count(n) * cpu <= free[n] for n in set(chosen)):
            return True
    return False


def submit_gang(mesh, name, pool_name, need, duration, priority):
    """A task that waits: a gang, or an agent alone."""
    cpu, bundles = need["cpu"], need["bundles"]
    if bundles == 1:
        return mesh.queue(name, pool_name, priority, cpu=cpu, duration=duration)
    gang = GangPayload(strategy=need["strategy"])
    return mesh.queue(
        name, pool_name, priority, bundles=[{"cpu": cpu}] * bundles, payload=gang, duration=duration
    )


def pass_a_second(mesh, arrivals):
    """What ends by its estimate ends, what starts runs, and these tasks are submitted."""
    mesh.now += 1
    over = [t for t, task in mesh.state.running.by_id.items() if (task.ends_at or 1e9) <= mesh.now]
    for task_id in over:
        mesh.complete(task_id)
    settle(mesh)
    for number, task in arrivals:
        submit_gang(mesh, f"later-{number}", task["pool_name"], task["need"], task["duration"], 4.0)
    settle(mesh)
    mesh.tick()
    settle(mesh)


def settle(mesh):
    """Ray creates and removes groups, and starts agents."""
    while mesh.makes or mesh.removes or mesh.starts:
        mesh.make_all()
        for group_id in list(mesh.removes):
            mesh.remove(group_id)
        for name in list(mesh.starts):
            mesh.report(name)


@given_that(
    first=st.lists(first_tasks, min_size=1, max_size=8),
    need=needs,
    quota=st.integers(3, 12),
    later=st.lists(tasks, max_size=12),
)
@settings(max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")), deadline=None)
def test_a_start_is_the_earliest_by_estimates_and_later_tasks_never_delay_it(
    first, need, quota, later
):
    mesh = Mesh(pool("p", cpu=quota), pool("q", cpu=12), nodes=[node(n, cpu=4) for n in NODES])
    for number, task in enumerate(first):
        outcome = mesh.submit(f"first-{number}", priority=9, **task)
        if isinstance(outcome, Pending):
            mesh.report(f"first-{number}")
    answer = submit_gang(mesh, "head", "p", need, 30.0, 5.0)
    assume(isinstance(answer, Queued) and answer.position == 1)
    mesh.tick()
    reserved = mesh.state.queue.by_id["head"].reservation
    promised = None if reserved is None else reserved.at  # none: no node could ever hold it
    assert promised == earliest_by_hand(mesh, need, quota)
    assume(promised is not None)
    while mesh.now < promised:
        second = mesh.now + 1 - 1000
        pass_a_second(mesh, [(i, t) for i, t in enumerate(later) if t["at"] == second])
    assert "head" in mesh.state.running.by_id


# between two ticks


@pytest.fixture
def one():
    """A pool and a node of eight CPUs, where a task of four runs for 100 s."""
    mesh = Mesh(pool("p", cpu=8), nodes=[node("n1", cpu=8)])
    mesh.run("a", cpu=4, duration=100.0)
    return mesh


def test_no_tick_is_needed_to_keep_the_start_of_a_new_first_task(one):
    one.queue("b", cpu=7)
    assert one.dry("c", cpu=2).reason == Reason.HELD_FOR_QUEUE
    assert reserved_ids(one) == []
    assert one.queue("c", cpu=2).position == 2
    assert reserved(one, "b") == (1100.0, ("n1",), None)
    assert one.queue("d", cpu=1, duration=90.0).position == 0
    one.tick()
    assert one.waiting() == ["b", "c"]


def reserved_ids(mesh):
    return list(mesh.state.queue.reserved)


def test_a_task_that_becomes_the_first_when_another_starts_is_not_passed_in_that_step(one):
    one.run("e", cpu=4)
    one.queue("a2", cpu=4, duration=50.0)
    one.queue("b", cpu=7)
    one.queue("c", cpu=2)
    one.tick()
    one.complete("a")
    one.report("a2")
    one.complete("e")
    assert one.waiting() == ["b", "c"]
    assert reserved(one, "b") == (1050.0, ("n1",), None)


def test_with_a_backfill_limit_of_0_nothing_passes_a_new_first_task():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("n1", cpu=8)])
    mesh.order_by(backfill_limit_s=0.0)
    mesh.run("a", cpu=4)
    mesh.queue("b", cpu=7)
    assert mesh.queue("c", cpu=2, duration=1.0).position == 2


# quota that nobody knows when it comes


def blocked_for_quota(**running):
    """x is full with a task, and another one waits in it; p may use the two nodes that are left."""
    nodes = [node(f"n{i}", gpu=8) for i in range(1, 4)]
    mesh = Mesh(pool("x", gpu=8), pool("p", gpu=16), nodes=nodes)
    mesh.run("service", "x", 9.0, gpu=8, **running)
    mesh.queue("next", "x", 9.0, gpu=8)
    return mesh


def test_no_node_is_kept_for_a_task_while_nobody_knows_when_its_pool_has_the_quota():
    mesh = blocked_for_quota()
    for name in ("a", "b"):
        mesh.tick(7200)
        assert mesh.queue(name, gpu=8).position == 0
        mesh.report(name)
    assert {mesh.state.agents[name].node_id for name in ("a", "b")} == {"n2", "n3"}


def test_a_node_is_kept_only_for_the_last_hour_before_the_quota_comes():
    mesh = blocked_for_quota(duration=10_000.0)
    mesh.tick()
    assert reserved(mesh, "next") == (11_000.0, (), None)
    assert mesh.queue("a", gpu=8).position == 0
    mesh.report("a")
    mesh.tick(7000)
    assert len(reserved(mesh, "next")[1]) == 1
    assert mesh.queue("b", gpu=8).position == 1
    assert mesh.queue("short", gpu=8, duration=2000.0).position == 0


def test_no_node_is_kept_for_a_task_that_would_have_to_borrow_what_nobody_has_idle():
    mesh = Mesh(
        pool("x", gpu=4, lending={"cohort": "c"}),
        pool("y", gpu=8, lending={"cohort": "c"}),
        pool("p", gpu=8),
        nodes=[node("n1", gpu=8), node("n2", gpu=8)],
    )
    mesh.run("service", "y", 9.0, gpu=8, node_id="n1")
    mesh.queue("large", "x", 9.0, gpu=8)
    mesh.tick(7200)
    mesh.tick(1)
    assert mesh.queue("a", gpu=8).position == 0


def test_a_node_is_kept_for_a_task_that_may_borrow_what_is_idle_now():
    mesh = Mesh(
        pool("x", gpu=4, lending={"cohort": "c"}),
        pool("y", gpu=8, lending={"cohort": "c"}),
        pool("p", gpu=8),
        nodes=[node("n1", gpu=8)],
    )
    mesh.run("small", "p", 9.0, gpu=1)
    mesh.queue("large", "x", 9.0, gpu=8)
    mesh.tick(7200)
    mesh.tick(1)
    assert mesh.queue("a", gpu=1).position == 1


def test_no_node_is_kept_for_a_task_that_lacks_a_group_of_its_pool():
    groups = GroupsSpec(dynamic=True, max_dynamic=1)
    mesh = Mesh(
        pool("x", gpu=16, groups=groups),
        pool("p", gpu=8),
        nodes=[node("n1", gpu=4), node("n2", gpu=4)],
    )
    mesh.submit("service", "x", 9.0, gpu=4)
    mesh.make_all()
    mesh.report("service")
    mesh.queue("next", "x", 9.0, gpu=4)
    mesh.tick(7200)
    mesh.tick(1)
    assert mesh.queue("a", gpu=4).position == 0


# tasks that run for longer than they declared


@pytest.fixture
def overdue():
    """Two tasks that declare 100 and 110 s, and one that needs the node of both."""
    mesh = Mesh(pool("p", gpu=2, cpu=64), nodes=[node("n1", gpu=2, cpu=64)])
    mesh.run("a", gpu=1, duration=100.0)
    mesh.run("b", gpu=1, duration=110.0)
    mesh.queue("large", gpu=2, duration=10.0)
    mesh.queue("later", gpu=1, duration=500.0)
    mesh.tick(1)
    assert reserved(mesh, "large") == (1110.0, ("n1",), None)
    return mesh


@pytest.mark.parametrize("late_s", [0.0, 0.1, 1.0, 3.0, 9.0])
def test_a_task_that_outlives_its_end_by_a_moment_lets_nobody_pass_the_reserved_start(
    overdue, late_s
):
    overdue.tick(99.0 + late_s)
    assert reserved(overdue, "large")[0] == 1110.0
    overdue.complete("a")
    overdue.tick(1)
    assert overdue.waiting() == ["large", "later"]
    overdue.complete("b")
    assert overdue.waiting() == ["later"]


def test_an_end_that_has_passed_moves_by_more_the_longer_the_task_runs_on(overdue):
    """It is expected to run on for a twentieth of its duration, doubled as often as needed."""
    overdue.complete("b")
    expected = []
    for late_s in (0.0, 4.9, 5.0, 9.9, 10.0, 19.0, 39.0, 41.0):
        overdue.now = 1100.0 + late_s
        overdue.tick()
        expected.append(reserved(overdue, "large")[0] - 1100.0)
    assert expected == [5.0, 5.0, 10.0, 10.0, 20.0, 20.0, 40.0, 80.0]


def test_what_ends_before_a_task_that_runs_on_is_expected_to_may_pass(overdue):
    overdue.complete("b")
    overdue.now = 1141.0
    overdue.tick()
    assert overdue.queue("short", gpu=1, duration=38.0).position == 0
    assert overdue.queue("longer", gpu=1, duration=40.0).position > 0


def test_a_measured_end_that_has_passed_moves_likewise():
    mesh = Mesh(pool("p", gpu=2, cpu=64), nodes=[node("n1", gpu=2, cpu=64)], measured_progress=True)
    mesh.run("a", gpu=1)
    mesh.handle(AgentsMeasured(ends=(("a", 1100.0),)))
    mesh.queue("large", gpu=2, duration=10.0)
    mesh.tick(1)
    assert reserved(mesh, "large")[0] == 1100.0
    mesh.tick(100)
    assert reserved(mesh, "large")[0] == 1105.0
    assert mesh.queue("later", gpu=1, duration=500.0).position == 2


def test_tasks_that_run_on_put_the_first_one_off_for_no_longer_than_others_may_pass_it():
    mesh = Mesh(pool("p", gpu=2, cpu=64), nodes=[node("n1", gpu=2, cpu=64)])
    mesh.order_by(backfill_limit_s=300.0)
    mesh.run("a", gpu=1, duration=100.0)
    mesh.queue("large", gpu=2, duration=10.0)
    for _ in range(350):
        mesh.tick(1)
    assert reserved(mesh, "large")[0] == 1420.0
    assert mesh.queue("short", gpu=1, duration=30.0).position == 0
    mesh.report("short")
    mesh.tick(60)
    mesh.complete("short")
    assert reserved(mesh, "large")[0] is None
    assert mesh.queue("again", gpu=1, duration=30.0).position == 2
    mesh.tick(100)
    assert mesh.waiting() == ["large", "again"]
    mesh.complete("a")
    assert mesh.waiting() == ["again"]


def test_quota_of_a_task_that_runs_on_is_expected_like_its_room():
    mesh = Mesh(pool("p", gpu=2, cpu=64), nodes=[node("n1", gpu=8, cpu=64)])
    mesh.run("a", gpu=1, duration=100.0)
    mesh.run("b", gpu=1, duration=110.0)
    mesh.queue("large", gpu=2, duration=10.0)
    mesh.queue("later", gpu=1, duration=500.0)
    mesh.tick(102)
    assert reserved(mesh, "large")[0] == 1110.0
    mesh.complete("a")
    mesh.tick(1)
    assert mesh.waiting() == ["large", "later"]
