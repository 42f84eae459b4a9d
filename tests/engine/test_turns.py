"""Who may evict when the first task of a pool cannot be helped, and when many tasks or pools wait."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.engine.admission import queue_pass, reservations
from schedulemesh.engine.admission.turns import PoolTurn, ticks_until_searched
from schedulemesh.engine.state import invariants
from schedulemesh.engine.state.snapshot import restored, take_snapshot
from tests.engine import builders
from tests.engine.builders import Mesh, node, pool

COHORT = {"cohort": "c"}


@pytest.fixture(autouse=True)
def seldom_checked(monkeypatch):
    """Meshes of hundreds of pools are checked every 50 steps only."""
    steps = itertools.count()
    monkeypatch.setattr(
        builders, "check", lambda state: next(steps) % 50 or invariants.check(state)
    )


def evicted(mesh):
    return sorted(mesh.ends)


# behind a first task that evictions do not help


def lent_out(**policy):
    """p owns 8 GPUs, of which q uses all; its first task wants more than p owns."""
    mesh = Mesh(
        pool("p", gpu=8, lending=COHORT),
        pool("q", gpu=8, lending=COHORT),
        nodes=[node("n1", gpu=8), node("n2", gpu=8)],
        **policy,
    )
    for index in range(4):
        mesh.submit(f"b{index}", "q", 9.0, gpu=4)
    return mesh


def all_run(mesh):
    """Those that start report: from now on they can be evicted."""
    for name in list(mesh.starts):
        mesh.report(name)


@pytest.mark.parametrize("front", [1, 3, 20])
def test_an_owner_gets_its_quota_back_whoever_stands_first_in_its_queue(front):
    mesh = lent_out()
    for index in range(front):
        mesh.queue(
            f"large-{index}",
            "p",
            9.0,
            bundles=[{"gpu": 8}, {"gpu": 1 + index % 8}],
            payload=GangPayload(),
        )
    for index in range(2):
        mesh.queue(f"own-{index}", "p", 1.0, gpu=4)
    all_run(mesh)
    mesh.tick(1)
    assert len(evicted(mesh)) == 2
    for name in evicted(mesh):
        mesh.leave(name)
    assert sorted(mesh.starts) == ["own-0", "own-1"]


def test_an_urgent_task_evicts_though_one_before_it_lacks_a_node():
    mesh = Mesh(pool("p", gpu=32), nodes=[node("n1", gpu=8)])
    mesh.order_by(order="fifo")
    mesh.submit("low", gpu=8, priority=1)
    mesh.queue("too-large", gpu=16, priority=5)
    mesh.queue("urgent", gpu=8, priority=50)
    all_run(mesh)
    mesh.tick(1)
    assert evicted(mesh) == ["low"]


def test_a_gang_on_several_nodes_evicts_though_a_task_before_it_lacks_a_whole_node():
    mesh = Mesh(
        pool("p", gpu=16, cpu=100),
        nodes=[node("n1", gpu=8, cpu=50), node("n2", gpu=8, cpu=50)],
        min_runtime=60.0,
    )
    for node_id in ("n1", "n2"):
        mesh.run(f"service-{node_id}", priority=50.0, gpu=4)
        mesh.run(f"low-{node_id}", priority=1.0, gpu=4, class_key="c")
    assert {a.node_id for n, a in mesh.state.agents.items() if n.startswith("low")} == {"n1", "n2"}
    mesh.queue("single", priority=9.0, gpu=8)
    mesh.queue("gang", priority=9.0, bundles=[{"gpu": 4}] * 2, payload=GangPayload())
    assert evicted(mesh) == []
    mesh.tick(61)
    assert evicted(mesh) == ["low-n1", "low-n2"]


def test_a_promoted_task_that_cannot_be_helped_does_not_stop_an_urgent_one():
    mesh = Mesh(pool("p", gpu=32), nodes=[node("n1", gpu=8)], enable_cross_pool_preemption=False)
    mesh.order_by(promote_after_s=60.0)
    mesh.submit("low", gpu=8, priority=1)
    mesh.queue("impossible", gpu=16, priority=0.1)
    mesh.tick(61)
    mesh.queue("urgent", gpu=8, priority=50)
    all_run(mesh)
    mesh.tick(1)
    assert evicted(mesh) == ["low"]


def test_nothing_passes_the_first_task_of_a_strict_pool_by_evictions():
    mesh = lent_out()
    spec = mesh.state.ledger.accounts["p"].spec
    mesh.resize(msgspec.structs.replace(spec, queueing="strict"))
    mesh.queue("large", "p", 9.0, bundles=[{"gpu": 8}, {"gpu": 4}], payload=GangPayload())
    mesh.queue("own", "p", 1.0, gpu=4)
    all_run(mesh)
    mesh.tick(1)
    assert evicted(mesh) == []


def test_a_later_task_evicts_nobody_where_that_would_delay_the_start_of_the_first():
    mesh = Mesh(pool("p", gpu=16), nodes=[node("n1", gpu=8)])
    mesh.run("high", gpu=4, priority=9, duration=100.0)
    mesh.submit("low", gpu=4, priority=1, duration=50.0)
    mesh.queue("first", gpu=8, priority=9)
    mesh.tick(1)
    mesh.queue("later", gpu=4, priority=8)
    mesh.queue("short", gpu=4, priority=7, duration=90.0)
    all_run(mesh)
    mesh.tick(1)
    assert evicted(mesh) == ["low"]
    mesh.leave("low")
    assert list(mesh.starts) == ["short"]


# more tasks of one pool than one tick searches for


def behind_blocked(pools, count):
    """In each of these pools so many tasks of eight GPUs that no eviction helps, all with other labels, and
    behind them one of four, for which one of low priority may go in a minute.
    """
    names = [f"p{i}" for i in range(pools)]
    mesh = Mesh(*(pool(n, gpu=99) for n in names), nodes=[node(f"n-{n}", gpu=8) for n in names])
    mesh.policy(min_runtime=60.0)
    mesh.order_by(order="fifo")
    for name in names:
        for kind, priority in (("high", 90.0), ("low", 1.0)):
            mesh.run(f"{kind}-{name}", name, priority, gpu=4, node_id=f"n-{name}")
    for name in names:
        for number in range(count):
            mesh.queue(f"{name}-blocked-{number}", name, 50.0, gpu=8, labels={"run": str(number)})
        mesh.queue(f"{name}-urgent", name, 50.0, gpu=4)
    mesh.now += 61
    return mesh, [f"low-{name}" for name in names]


def seconds_told(mesh, task_id):
    """Within how many seconds it is the turn of a task, as ``explain`` says."""
    error = mesh.engine.explain(task_id, mesh.now).error
    within = re.search(r"it is its turn within about (\d+) s", error)
    return int(within[1]) if within else 1


@pytest.mark.parametrize(
    ("pools", "count", "seconds"), [(1, 49, 1), (1, 60, 6), (1, 110, 10), (6, 12, 6)]
)
def test_a_task_behind_many_that_evictions_do_not_help_has_its_turn(pools, count, seconds):
    mesh, low = behind_blocked(pools, count)
    assert seconds_told(mesh, "p0-urgent") == seconds
    for _ in range(seconds):
        mesh.tick(1)
    assert evicted(mesh) == low


@pytest.mark.parametrize("most", [10, 50])
@pytest.mark.parametrize("waiting", [1, 50, 51, 120, 400])
@pytest.mark.parametrize("begin", [0, 1_700_000_000, 1_812_345_678])
def test_every_task_has_its_turn_in_time(most, waiting, begin):
    last_turn = dict.fromkeys(range(waiting), 0)
    for tick in range(1, 4 * waiting):
        turn = PoolTurn(most, waiting, begin + tick + 0.5)
        for rank in filter(turn.includes, range(waiting)):
            turn.note()
            ticks = tick - last_turn[rank]
            assert ticks <= ticks_until_searched(most, waiting, rank)
            last_turn[rank] = tick
    assert all(last_turn.values())


@pytest.mark.parametrize("seconds", [0.5, 1.5, 2.0, 3.0, 10.0])
def test_no_time_between_ticks_leaves_a_task_out(seconds):
    searched = set()
    for tick in range(300):
        turn = PoolTurn(10, 200, 1e9 + tick * seconds)
        for rank in filter(turn.includes, range(200)):
            turn.note()
            searched.add(rank)
    assert searched == set(range(200))


@pytest.mark.parametrize("count", [101, 120])
def test_an_owner_behind_many_tasks_of_its_pool_gets_its_quota_back_on_the_next_tick(count):
    mesh = lent_out(reclaim_unsavable=False)
    for number in range(count):
        mesh.queue(
            f"large-{number}",
            "p",
            9.0,
            bundles=[{"gpu": 8}, {"gpu": 1 + number % 8}],
            labels={"run": str(number)},
            payload=GangPayload(),
        )
    for name in ("own-0", "own-1"):
        mesh.queue(name, "p", 1.0, gpu=4)
    all_run(mesh)
    mesh.policy(reclaim_unsavable=True)
    mesh.tick(1)
    assert len(evicted(mesh)) == 2


def test_owners_that_no_reclaim_helps_take_turns():
    """150 owners ask for the node of a pool that lends nothing; the last one for a node of borrowers."""
    models = {"n1": "x", "n2": "x", "n3": "y"}
    mesh = Mesh(
        pool("p", gpu=8, lending=COHORT),
        pool("q", gpu=8, lending=COHORT),
        pool("r", gpu=8),
        nodes=[node(name, gpu=8, labels={"model": model}) for name, model in models.items()],
        reclaim_unsavable=False,
    )
    for index in range(2):
        mesh.submit(f"b{index}", "q", 9.0, gpu=8, node_labels={"model": "x"})
    mesh.submit("other", "r", 99.0, gpu=8, node_labels={"model": "y"})
    all_run(mesh)
    for number in range(150):
        labels = {"run": str(number)}
        mesh.queue(f"y-{number}", "p", 9.0, gpu=1, labels=labels, node_labels={"model": "y"})
    mesh.queue("own", "p", 1.0, gpu=8, node_labels={"model": "x"})
    mesh.policy(reclaim_unsavable=True)
    seconds = seconds_told(mesh, "own")
    assert seconds == 8
    for _ in range(seconds):
        mesh.tick(1)
    assert len(evicted(mesh)) == 1


# many pools


def many(count, **policy):
    """So many pools of one GPU, each full, whose first tasks wait for good; and an owner and a borrower."""
    nodes = [node(f"n{i:03}", gpu=1) for i in range(count)] + [node("z", gpu=8)]
    mesh = Mesh(
        *(pool(f"p{i:03}", gpu=1) for i in range(count)),
        pool("owner", gpu=8, lending=COHORT),
        pool("taker", lending=COHORT),
        nodes=nodes,
        **policy,
    )
    for i in range(count):
        mesh.run(f"runs-{i:03}", f"p{i:03}", 9.0, gpu=1)
        mesh.queue(f"waits-{i:03}", f"p{i:03}", 9.0, gpu=1)
    mesh.submit("borrows", "taker", 9.0, gpu=8)
    return mesh


@pytest.mark.parametrize("count", [51, 200])
def test_an_owner_behind_many_other_pools_gets_its_quota_back_on_the_next_tick(count):
    mesh = many(count)
    mesh.queue("own", "owner", 0.0, gpu=8)
    all_run(mesh)
    mesh.tick(1)
    assert evicted(mesh) == ["borrows"]


def blocked_pools(count):
    """Pools of eight GPUs with a task of four of high priority, one of low priority, and one that waits for
    eight; the last pool has none of high priority.
    """
    names = [f"p{i:03}" for i in range(count)]
    mesh = Mesh(*(pool(n, gpu=8) for n in names), nodes=[node(f"n-{n}", gpu=8) for n in names])
    mesh.policy(min_runtime=60.0)
    for name in names:
        mesh.run(f"low-{name}", name, 1.0, gpu=4, node_id=f"n-{name}")
        mesh.run(
            f"other-{name}", name, 1.0 if name == names[-1] else 9.0, gpu=4, node_id=f"n-{name}"
        )
        mesh.queue(f"waits-{name}", name, 9.0, gpu=8)
    return mesh, names


@pytest.mark.parametrize("count", [51, 200])
def test_every_pool_has_its_turn(count):
    mesh, names = blocked_pools(count)
    mesh.now += 61
    error = mesh.engine.explain(f"waits-{names[-1]}", mesh.now).error
    assert f"within about {-(-count // 50)} s" in error
    for _ in range(-(-count // 50)):
        mesh.tick(1)
    assert evicted(mesh) == [f"low-{names[-1]}", f"other-{names[-1]}"]


def test_turns_go_on_after_a_restart_where_they_stopped():
    mesh, _ = blocked_pools(120)
    mesh.tick(61)
    mesh.tick(1)
    assert mesh.state.queue.turns.evictions
    assert mesh.rewritten().queue.turns == mesh.state.queue.turns
    assert restored([take_snapshot(mesh.state)]).queue.turns == mesh.state.queue.turns
    assert mesh.refolded().queue.turns == mesh.state.queue.turns


def test_searches_without_candidates_do_not_count(monkeypatch):
    monkeypatch.setattr(queue_pass, "SEARCHES", 2)
    mesh = many(9)
    all_run(mesh)
    mesh.resize(pool("z", gpu=8))
    mesh.complete("borrows")
    mesh.run("low", "z", 1.0, gpu=8)
    mesh.policy(min_runtime=5.0)
    mesh.queue("urgent", "z", 9.0, gpu=8)
    mesh.tick(6)
    assert evicted(mesh) == ["low"]


def test_reserved_starts_are_kept_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(reservations, "_STARTS", 3)
    names = [f"p{i}" for i in range(8)]
    mesh = Mesh(*(pool(n, gpu=8) for n in names), nodes=[node(f"n-{n}", gpu=8) for n in names])
    for name in names:
        mesh.run(f"runs-{name}", name, 9.0, gpu=8, duration=100.0, node_id=f"n-{name}")
        mesh.queue(f"waits-{name}", name, 9.0, gpu=8)
    for _ in range(3):
        mesh.tick(1)
    assert set(mesh.state.queue.reserved) == {f"waits-{name}" for name in names}
    seen = len(mesh.facts)
    mesh.tick(1)
    assert "ReservationDropped" not in [type(f).__name__ for f in mesh.facts[seen:]]
