"""Smaller tasks are moved, so that a larger one has room on a node."""

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages import facts as f
from tests.engine.builders import Mesh, node, pool
from tests.engine.test_service import pass_time, run

AFTER_S = 600.0


def scattered(*pools, small=1, savable=True, after_s=AFTER_S, **policy):
    """Three nodes of 8 GPUs, each with one task, and room for 8 GPUs on none of them."""
    nodes = [node(name, gpu=8) for name in "abc"]
    m = Mesh(*(pools or [pool("p", gpu=24)]), nodes=nodes, defragment_after_s=after_s, **policy)
    for name in "abc":
        run(m, f"large-{name}", gpu=8 - small)
        run(m, f"small-{name}", pools[-1].name if pools else "p", gpu=small, savable=savable)
    for name in "abc":
        m.complete(f"large-{name}")
    return m


def test_the_task_that_is_in_the_way_is_moved():
    m = scattered()
    m.queue("gang", gpu=8)
    assert m.ends == {}
    pass_time(m, AFTER_S)
    (moved,) = m.ends
    reasons = [fact.reason for fact in m.facts if isinstance(fact, f.EvictionStarted)]
    assert reasons == [PreemptionReason.DEFRAGMENTED]
    before = m.state.agents[moved].node_id
    m.leave(moved, saved=True)
    assert m.starts["gang"].node_id == before
    assert m.starts[moved].node_id not in (None, before)
    assert m.starts[moved].state_key == f"state-{moved}"


def test_nothing_is_moved_by_default():
    m = scattered(after_s=0.0)
    m.queue("gang", gpu=8)
    pass_time(m, 10 * AFTER_S)
    assert m.ends == {}


def test_what_cannot_be_saved_is_not_moved():
    m = scattered(savable=False)
    m.queue("gang", gpu=8)
    pass_time(m, AFTER_S)
    assert m.ends == {}


def test_what_has_no_room_elsewhere_is_not_moved():
    m = scattered(small=5)
    m.queue("gang", gpu=8)
    pass_time(m, AFTER_S)
    assert m.ends == {}


def test_nothing_is_moved_for_a_task_that_is_not_larger():
    m = scattered(small=5)
    m.queue("task", gpu=5)
    pass_time(m, AFTER_S)
    assert m.ends == {}


def test_a_moved_task_is_not_moved_again_before_the_same_time():
    m = scattered()
    m.queue("gang", gpu=8)
    pass_time(m, AFTER_S)
    (moved,) = m.ends
    m.leave(moved, saved=True)
    m.report("gang")
    m.report(moved, capabilities=("save_state",))
    m.queue("second gang", gpu=8)
    assert moved not in m.ends


def test_the_tasks_of_another_pool_are_not_moved_from_its_own_quota():
    m = scattered(pool("p", gpu=24), pool("q", gpu=24))
    m.queue("gang", gpu=8)
    pass_time(m, AFTER_S)
    assert m.ends == {}


def test_min_runtime_spares_tasks_from_moves_too():
    m = scattered(min_runtime=2 * AFTER_S)
    m.queue("gang", gpu=8)
    pass_time(m, AFTER_S)
    assert m.ends == {}
    pass_time(m, AFTER_S)
    assert len(m.ends) == 1


@pytest.mark.parametrize("gangs", [1, 3])
def test_moves_come_to_an_end(gangs):
    m = scattered()
    for number in range(gangs):
        m.queue(f"gang-{number}", gpu=8)
    for _ in range(20):
        pass_time(m, AFTER_S)
        for name in list(m.ends):
            m.leave(name, saved=True)
        for name in list(m.starts):
            m.report(name, capabilities=("save_state",))
    moves = [fact for fact in m.facts if isinstance(fact, f.EvictionStarted)]
    assert len(moves) <= 2
    assert len(m.waiting()) == max(0, gangs - 2)


def test_a_smaller_task_is_moved_out_of_the_rack_that_a_gang_requires():
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    m = Mesh(
        pool("p", gpu=64),
        nodes=[node(name, gpu=8, labels={"rack": rack}) for name, rack in racks.items()],
        defragment_after_s=AFTER_S,
        topology_levels=("rack",),
    )
    for name in "ac":
        run(m, f"large-{name}", gpu=8)
        run(m, f"large-{name}2", gpu=7)
        run(m, f"small-{name}", gpu=1)
    for task_id in [task for task in m.state.running.by_id if task.startswith("large")]:
        m.complete(task_id)
    whole = {"bundles": [{"gpu": 8}] * 2, "payload": GangPayload(strategy="PACK")}
    small = {m.state.agents[f"small-{name}"].node_id for name in "ac"}
    assert {racks[node_id] for node_id in small} == {"r1", "r2"}
    m.queue("gang", topology="rack", **whole)
    assert m.ends == {}
    pass_time(m, AFTER_S)
    (moved,) = m.ends
    left = racks[m.state.agents[moved].node_id]
    m.leave(moved, saved=True)
    group = m.state.groups.by_id[m.state.agents["gang"].group_id]
    assert {racks[node_id] for node_id in group.node_ids} == {left}
    assert racks[m.starts[moved].node_id] != left
