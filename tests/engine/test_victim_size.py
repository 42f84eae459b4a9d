"""The size of a victim counts: what is lost with it, and what becomes idle by its eviction."""

from __future__ import annotations

import pytest

from schedulemesh.config.policy import VICTIM_ORDERS
from schedulemesh.domain.payloads import GangPayload
from tests.engine.builders import Mesh, names, node, pool


def evicting(mesh, name):
    return names(mesh.state.agents[name].submission.evicting)


def with_gang(before_s=100.0, **policy):
    """A gang of 16 GPUs on two nodes, and a task of one GPU on a third, which began earlier."""
    nodes = [node("a", cpu=64, gpu=8), node("b", cpu=64, gpu=8), node("c", cpu=64, gpu=1)]
    mesh = Mesh(pool("p", cpu=200, gpu=17), nodes=nodes, **policy)
    mesh.run("small", priority=1.0, cpu=1, gpu=1, class_key="c")
    mesh.now += before_s
    bundles = [{"cpu": 1, "gpu": 8}, {"cpu": 1, "gpu": 8}]
    mesh.submit("gang", priority=1.0, bundles=bundles, payload=GangPayload(), class_key="c")
    mesh.make_all()
    mesh.report("gang")
    mesh.now += 10.0
    return mesh


@pytest.mark.parametrize("order", VICTIM_ORDERS)
def test_for_one_gpu_a_task_of_one_goes_before_a_gang_of_16(order):
    mesh = with_gang(victim_order=order)
    mesh.submit("urgent", priority=9.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "urgent") == ["small"]


def test_the_larger_one_goes_where_the_smaller_is_not_enough():
    mesh = with_gang()
    mesh.submit("urgent", priority=9.0, cpu=1, gpu=2, class_key="c")
    assert evicting(mesh, "urgent") == ["gang"]


def test_the_order_of_priorities_outweighs_the_size():
    """A large task of lower priority goes before a small one of higher priority."""
    mesh = Mesh(pool("p", cpu=9, gpu=9), nodes=[node("a", cpu=9, gpu=9)])
    mesh.run("large", priority=1.0, cpu=1, gpu=8, class_key="c")
    mesh.run("small", priority=2.0, cpu=1, gpu=1, class_key="c")
    mesh.submit("urgent", priority=9.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "urgent") == ["large"]


def test_the_remaining_time_decides_among_tasks_of_one_size():
    mesh = Mesh(pool("p", cpu=9, gpu=9), nodes=[node("a", cpu=9, gpu=9)])
    for name, gpu, left in (("large", 7, 500.0), ("short", 1, 50.0), ("long", 1, 100.0)):
        mesh.run(name, priority=1.0, cpu=1, gpu=gpu, duration=left, class_key="c")
    mesh.submit("urgent", priority=9.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "urgent") == ["long"]


def test_without_gpus_the_cpus_count():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=9)])
    mesh.run("small", priority=1.0, cpu=1, class_key="c")
    mesh.now += 10.0
    mesh.run("large", priority=1.0, cpu=8, class_key="c")
    mesh.submit("urgent", priority=9.0, cpu=1, class_key="c")
    assert evicting(mesh, "urgent") == ["small"]


def test_of_several_nodes_the_one_is_taken_where_least_gpu_seconds_are_lost():
    """Two tasks of four GPUs for 20 s have lost less than two of eight GPUs for 15 s."""
    mesh = Mesh(
        pool("p", cpu=99, gpu=24), nodes=[node("a", cpu=40, gpu=16), node("b", cpu=40, gpu=8)]
    )
    for name, gpu in (("b1", 4), ("b2", 4)):
        mesh.run(name, priority=1.0, cpu=20, gpu=gpu, class_key="c", node_id="b")
    mesh.now += 5.0
    for name in ("a1", "a2"):
        mesh.run(name, priority=1.0, cpu=20, gpu=8, class_key="c", node_id="a")
    mesh.now += 15.0
    mesh.submit("urgent", priority=9.0, cpu=30, gpu=8, class_key="c")
    assert sorted(evicting(mesh, "urgent")) == ["b1", "b2"]


def test_a_reclaim_evicts_the_smaller_of_two_borrowers_of_one_age():
    mesh = Mesh(
        pool("own", cpu=9, gpu=17, lending={"cohort": "c"}),
        pool("other", cpu=9, gpu=0, lending={"cohort": "c"}),
        nodes=[node("a", cpu=20, gpu=17)],
    )
    mesh.run("small", "other", cpu=1, gpu=1, class_key="c")
    mesh.run("large", "other", cpu=1, gpu=16, class_key="c")
    mesh.now += 50.0
    mesh.submit("mine", "own", 1.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "mine") == ["small"]


LONG = [100.0, 3600.0, 10 * 3600.0]


@pytest.mark.parametrize("work_s", LONG)
@pytest.mark.parametrize("order", VICTIM_ORDERS)
def test_what_becomes_idle_counts_however_the_victims_are_ordered(order, work_s):
    mesh = with_gang(victim_order=order, before_s=work_s)
    mesh.submit("urgent", priority=9.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "urgent") == ["small"]


def test_work_of_a_day_outweighs_a_gpu_that_becomes_idle():
    mesh = Mesh(pool("p", cpu=9, gpu=3), nodes=[node("a", cpu=9, gpu=3)])
    mesh.policy(victim_order="least_lost_work")
    mesh.run("one", priority=1.0, cpu=1, gpu=1, class_key="c")
    mesh.now += 86_400.0
    mesh.run("two", priority=1.0, cpu=1, gpu=2, class_key="c")
    mesh.submit("urgent", priority=9.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "urgent") == ["two"]


COHORT = {"cohort": "c"}


def lent_out(work_s):
    """A gang of 16 GPUs and a task of one that has worked for longer, of pools that borrow all of it."""
    nodes = [node("a", cpu=64, gpu=8), node("b", cpu=64, gpu=8), node("c", cpu=64, gpu=1)]
    mesh = Mesh(
        pool("own", cpu=200, gpu=17, lending=COHORT),
        pool("q", lending=COHORT),
        nodes=nodes,
    )
    mesh.run("small", "q", 1.0, cpu=1, gpu=1, class_key="c", node_id="c")
    mesh.now += work_s
    bundles = [{"cpu": 1, "gpu": 8}, {"cpu": 1, "gpu": 8}]
    mesh.submit("gang", "q", 1.0, bundles=bundles, payload=GangPayload(), class_key="c")
    mesh.make_all()
    return mesh


@pytest.mark.parametrize("work_s", LONG)
def test_an_owner_of_one_gpu_takes_back_a_task_of_one_before_a_gang_of_16(work_s):
    mesh = lent_out(work_s)
    mesh.report("gang")
    mesh.now += 10.0
    mesh.submit("mine", "own", 1.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "mine") == ["small"]


@pytest.mark.parametrize("work_s", LONG)
def test_nor_is_the_start_of_a_gang_of_16_cancelled(work_s):
    mesh = lent_out(work_s)
    mesh.submit("mine", "own", 1.0, cpu=1, gpu=1, class_key="c")
    assert evicting(mesh, "mine") == ["small"]
