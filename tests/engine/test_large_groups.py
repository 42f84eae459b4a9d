"""Groups of very many bundles: others wait while they are decided, so the work is bounded."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.placement import (
    MAX_BUNDLES,
    MAX_UNLIKE_BUNDLES,
    PLACEMENT_STRATEGIES,
    GroupsSpec,
)
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.placers import (
    BundlePlacement,
    FreeNode,
    NoPlacement,
    place_bundles,
)
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.devices import count_of, devices_for_all
from tests.counted_calls import calls_of
from tests.engine.builders import Mesh, node, pool, shape


def clustered(*reports):
    cluster = Cluster()
    for report in reports:
        cluster.see(report)
    return cluster


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "PACK", "SPREAD"])
def test_a_thousand_shares_of_gpus_are_placed(strategy):
    nodes = [node(f"n{i}", cpu=8, gpu=8) for i in range(4)]
    bundles = [{"gpu": 0.008}] * MAX_BUNDLES
    wanted = shape(*bundles, strategy=strategy)
    placement, calls = calls_of(lambda: Room(clustered(*nodes)).place(wanted))
    assert isinstance(placement, BundlePlacement)
    assert calls < 20_000


def test_shares_that_do_not_fill_devices_evenly_are_no_room():
    cluster = clustered(node("n", gpu=1))
    wanted = shape(*[{"gpu": 0.003}] * 334)
    assert isinstance(Room(cluster).place(wanted), NoPlacement)


@given(st.lists(st.sampled_from([10_000, 7_000, 5_000, 3_000]), max_size=4), st.integers(0, 12))
def test_equal_shares_are_counted_as_they_are_put(free, most):
    for gpu in (3_000, 5_000, 10_000, 20_000):
        fitting = [n for n in range(most + 1) if devices_for_all(free, [gpu] * n) is not None]
        assert count_of(free, gpu, most) == fitting[-1]


def greedy_pack(room, need, count):
    """Fill the node that has room for most, of equal ones the fullest; the nodes."""
    free, node_ids = dict(room), []
    while len(node_ids) < count:
        left = count - len(node_ids)
        takes = {name: min(cpu // need, left) for name, cpu in sorted(free.items())}
        most = max(takes.values(), default=0)
        if not most:
            return None
        best = min((n for n, k in takes.items() if k == most), key=lambda n: (free[n], n))
        node_ids += [best] * most
        del free[best]
    return tuple(node_ids)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20)),
    st.integers(1, 5),
    st.integers(2, 30),
)
def test_equal_bundles_are_packed_as_one_by_one(room, need, count):
    cluster = clustered(*(node(name, cpu=cpu) for name, cpu in room.items()))
    placement = Room(cluster).place(shape(*[{"cpu": need}] * count, strategy="PACK"))
    expected = greedy_pack(room, need, count)
    assert (
        expected == placement.node_ids
        if isinstance(placement, BundlePlacement)
        else expected is None
    )


def greedy_spread(room, needs):
    """The largest first, each on the emptiest node without a bundle, else on the emptiest; the nodes."""
    free, put = dict(room), {}
    for i in sorted(range(len(needs)), key=lambda i: (-needs[i], i)):
        able = [name for name, cpu in free.items() if cpu >= needs[i]]
        if not able:
            return None
        put[i] = max(able, key=lambda name: (name not in put.values(), free[name], name))
        free[put[i]] -= needs[i]
    return tuple(put[i] for i in range(len(needs)))


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20)),
    st.lists(st.integers(1, 5), min_size=17, max_size=30),
)
def test_bundles_are_spread_as_one_by_one(room, needs):
    cluster = clustered(*(node(name, cpu=cpu) for name, cpu in room.items()))
    placement = Room(cluster).place(shape(*({"cpu": n} for n in needs), strategy="SPREAD"))
    expected = greedy_spread(room, needs)
    assert (
        expected == placement.node_ids
        if isinstance(placement, BundlePlacement)
        else expected is None
    )


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"])
@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_counting_agrees_with_placing(strategy, room):
    for parts, size in ((1, 4), (2, 2), (4, 1)):
        nodes = [node(f"n{i}", cpu=2 if i < room else 1) for i in range(3)]
        wanted = shape(*[{"cpu": 1}] * 4, strategy=strategy)
        wanted = msgspec.structs.replace(wanted, parts=parts)
        cluster = clustered(*nodes)
        counted = Room(cluster).counts_for(wanted)
        placed = Room(cluster).placement(wanted) is not None
        assert counted in (placed, None), (parts, size)
        assert counted is not None or (strategy == "STRICT_SPREAD" and parts == 2)


def test_each_of_a_thousand_bundles_gets_a_node_of_its_own():
    cluster = clustered(*(node(f"n{i}", cpu=1) for i in range(MAX_BUNDLES)))
    wanted = shape(*[{"cpu": 1}] * MAX_BUNDLES, strategy="STRICT_SPREAD")
    placement, calls = calls_of(lambda: Room(cluster).place(wanted))
    assert len(set(placement.node_ids)) == MAX_BUNDLES
    assert calls < 50_000


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD"])
@pytest.mark.parametrize("quota", [120, 1_200])
def test_the_victims_of_a_large_group_are_few_and_found_with_little_work(strategy, quota):
    mesh = Mesh(
        pool("p", cpu=quota, groups=GroupsSpec(max_dynamic=9)),
        pool("q", cpu=1_000),
        nodes=[node(f"n{i:02}", cpu=3) for i in range(40)],
    )
    mesh.policy(cross_pool_priority_threshold=1.0)
    for i in range(120):
        mesh.run(f"runs-{i:03}", "q", priority=1.0, cpu=1)
    lease = LeasePayload(ttl_s=60.0, strategy=strategy)
    how = {"bundles": [{"cpu": 0.2}] * 400, "payload": lease}
    outcome, calls = calls_of(lambda: mesh.dry("high", "p", 9.0, **how))
    assert not isinstance(outcome, Refused), outcome
    assert len(outcome.preempted) == 80
    assert calls < 60_000
    refused, calls = calls_of(lambda: mesh.dry("low", "p", 0.0, **how))
    assert isinstance(refused, Refused)
    assert calls < 120_000


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "PACK", "SPREAD"])
def test_the_victims_of_many_groups_that_differ_are_found_with_little_work(strategy):
    mesh = Mesh(
        pool("p", cpu=1_000, groups=GroupsSpec(max_dynamic=9)),
        pool("q", cpu=1_000),
        nodes=[node(f"n{i:02}", cpu=16) for i in range(20)],
    )
    mesh.policy(cross_pool_priority_threshold=1.0)
    for i in range(320):
        mesh.run(f"runs-{i:03}", "q", priority=1.0, cpu=1)
    lease = LeasePayload(ttl_s=60.0, strategy=strategy, parts=MAX_UNLIKE_BUNDLES // 5)
    sizes = [{"cpu": 0.01 * (1 + i % 50)} for i in range(MAX_UNLIKE_BUNDLES)]
    asked = {"bundles": sizes, "payload": lease}
    outcome, calls = calls_of(lambda: mesh.dry("high", "p", 9.0, **asked))
    assert not isinstance(outcome, Refused), outcome
    assert calls < 220_000


def mixed(count):
    """Bundles of fifty sizes, on sixty nodes of which no two have as much free."""
    nodes = [node(f"n{i:02}", cpu=24 + i / 10, gpu=8) for i in range(60)]
    sizes = [
        {"cpu": 0.1 + 0.02 * (i % 50), "gpu": round(0.01 * (i % 50 + 1), 2)} for i in range(count)
    ]
    return Room(clustered(*nodes)), sizes


@pytest.mark.parametrize("strategy", PLACEMENT_STRATEGIES)
def test_the_work_for_very_many_groups_is_bounded(strategy):
    room, sizes = mixed(MAX_BUNDLES)
    wanted = replace(shape(*sizes, strategy=strategy), parts=MAX_BUNDLES // 2)
    placement, calls = calls_of(lambda: room.place(wanted))
    assert isinstance(placement, BundlePlacement)
    # Up to 1,190,000 where each group is looked for on copies of all nodes.
    assert calls < 130_000


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD"])
def test_the_work_for_a_group_of_many_sizes_is_bounded(strategy):
    room, sizes = mixed(MAX_BUNDLES)
    placement, calls = calls_of(lambda: room.place(shape(*sizes, strategy=strategy)))
    assert isinstance(placement, BundlePlacement)
    # 860,000 and 115,000 where every node is tried for every size again and again.
    assert calls < 60_000


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=2, max_size=2),
        min_size=2,
        max_size=5,
    ),
    st.sampled_from(PLACEMENT_STRATEGIES),
)
def test_parts_are_placed_as_if_all_nodes_were_looked_at_for_each(rooms, parts, strategy):
    """As far as the parts have room one after the other."""
    nodes = [node(f"n{i}", cpu=cpu, gpu=gpu) for i, (cpu, gpu) in enumerate(rooms)]
    sizes = [[{"cpu": cpu, "gpu": gpu} for cpu, gpu in part] for part in parts]
    free = [FreeNode(one, total=False, waits=False) for one in clustered(*nodes).nodes.values()]
    node_ids = []
    for part in sizes:
        wanted = shape(*part, strategy=strategy)
        placement = place_bundles(wanted, [one.copy() for one in free])
        if isinstance(placement, NoPlacement):
            return
        for need, node_id in zip(wanted.bundles, placement.node_ids, strict=True):
            (taken,) = [one for one in free if one.node_id == node_id]
            taken.put(need)
            taken.taken = False
        node_ids += placement.node_ids
    together = replace(
        shape(*(one for part in sizes for one in part), strategy=strategy), parts=len(sizes)
    )
    assert Room(clustered(*nodes)).place(together).node_ids == tuple(node_ids)
