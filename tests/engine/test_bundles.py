"""Placing the bundles of a group, held against a search through all assignments."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.exact import MOST_BUNDLES, MOST_NODES
from schedulemesh.engine.placement.placers import BundlePlacement, NoPlacement
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.devices import devices_for
from tests.engine.builders import Mesh, amount, node, on, shape

amounts = st.fixed_dictionaries(
    {"cpu": st.integers(0, 4)}, optional={"gpu": st.sampled_from([0.5, 1, 2]), "memory": st.just(5)}
).filter(any)
nodes = st.fixed_dictionaries(
    {"cpu": st.integers(0, 6)},
    optional={"gpu": st.integers(1, 3), "memory": st.sampled_from([5, 9])},
)


def clustered(*reports):
    cluster = Cluster()
    for report in reports:
        cluster.see(report)
    return cluster


def taken(free: Resources, devices: list[int], need: Resources) -> list[int] | None:
    """The devices that are left once the need has been put there; None: it does not fit."""
    found = devices_for(devices, need.gpu)
    if found is None or not need.fits(free):
        return None
    left = list(devices)
    for i, units in found.units:
        left[i] -= units
    return left


def holds(cluster, node_id, bundles):
    """Whether the node takes these bundles together, in any order."""
    found = cluster.nodes[node_id]
    for ordered in permutations(bundles):
        free, devices = found.free, found.devices
        for need in ordered:
            left = taken(free, devices, need)
            if left is None:
                break
            free, devices = free - need, left
        else:
            return True
    return False


def assignments(cluster, bundles):
    """Every way to put the bundles on nodes."""
    for node_ids in product(sorted(cluster.nodes), repeat=len(bundles)):
        by_node = {
            n: [b for b, at in zip(bundles, node_ids, strict=True) if at == n] for n in node_ids
        }
        if all(holds(cluster, n, mine) for n, mine in by_node.items()):
            yield node_ids


def greedy_spread(cluster, bundles):
    """Big ones first, each on the emptiest node without one, else on the emptiest; the nodes or None."""
    free = {n: (found.free, list(found.devices)) for n, found in cluster.nodes.items()}
    put = {}
    order = sorted(
        range(len(bundles)),
        key=lambda i: (-bundles[i].gpu, -bundles[i].cpu, -bundles[i].memory, i),
    )
    for i in order:
        able = [
            n for n, (room, devices) in free.items() if taken(room, devices, bundles[i]) is not None
        ]
        if not able:
            return None
        best = max(able, key=lambda n: (n not in put.values(), free[n][0].gpu, free[n][0].cpu, n))
        room, devices = free[best]
        left = taken(room, devices, bundles[i])
        assert left is not None
        free[best] = (room - bundles[i], left)
        put[i] = best
    return tuple(put[i] for i in range(len(bundles)))


def could(cluster, bundles, strategy):
    """Whether the strategy allows any assignment."""
    every = assignments(cluster, bundles)
    if strategy == "STRICT_PACK":
        return any(len(set(node_ids)) == 1 for node_ids in every)
    if strategy == "STRICT_SPREAD":
        return any(len(set(node_ids)) == len(bundles) for node_ids in every)
    return any(True for _ in every)


@settings(deadline=None)
@given(
    st.lists(nodes, min_size=1, max_size=4),
    st.lists(amounts, min_size=1, max_size=4),
    st.sampled_from(["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"]),
)
def test_a_spot_is_right_and_a_refusal_is_too(reports, needs, strategy):
    cluster = clustered(*(node(f"n{i}", **report) for i, report in enumerate(reports)))
    wanted = shape(*needs, strategy=strategy)

    placement = Room(cluster).place(wanted)

    if isinstance(placement, BundlePlacement):
        assert placement.node_ids in set(assignments(cluster, wanted.bundles))
        distinct = len(set(placement.node_ids))
        assert strategy != "STRICT_PACK" or distinct == 1
        assert strategy != "STRICT_SPREAD" or distinct == len(needs)
        if strategy == "SPREAD" and len(needs) > 1:
            assert greedy_spread(cluster, wanted.bundles) in (None, placement.node_ids)
        return
    assert not could(cluster, wanted.bundles, strategy)
    it_says_what_lacks(cluster, wanted, placement)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(["PACK", "SPREAD"]), st.integers(1, 12))
def test_bundles_for_which_the_nodes_were_made_are_placed(data, strategy, count):
    """Every node is full to the brim with some of the bundles; there may be no other way."""
    needs = data.draw(
        st.lists(amounts, min_size=count, max_size=16).filter(lambda found: len(found) >= count)
    )
    owners = [data.draw(st.integers(0, count - 1)) for _ in needs]
    reports = []
    for n in range(count):
        mine = [need for need, owner in zip(needs, owners, strict=True) if owner == n]
        gpu = sum(1 if need.get("gpu") == 0.5 else need.get("gpu", 0) for need in mine)
        room = {kind: sum(need.get(kind, 0) for need in mine) for kind in ("cpu", "memory")}
        reports.append(node(f"n{n}", gpu=gpu, **room))
    placement = Room(clustered(*reports)).place(shape(*needs, strategy=strategy))
    assert isinstance(placement, BundlePlacement)


def test_sixteen_bundles_that_fill_their_nodes_are_placed_whatever_their_sizes():
    """Greedy choices leave gaps here: two of 6 and one of 8 fill a node, as do four of 5."""
    sizes = [6, 6, 8] * 4 + [5] * 4
    wanted = shape(*({"cpu": size} for size in sizes), strategy="PACK")
    small = [node(f"small{i:02}", cpu=4) for i in range(59)]
    room = Room(clustered(*(node(f"n{i}", cpu=20) for i in range(5)), *small))
    placement = room.placement(wanted)
    used = dict.fromkeys(placement.node_ids, 0)
    for size, node_id in zip(sizes, placement.node_ids, strict=True):
        used[node_id] += size
    assert set(used.values()) == {20}


def test_what_has_no_room_is_found_out_however_many_bundles_differ():
    wanted = shape(*({"cpu": 10 + i} for i in range(16)), strategy="SPREAD")
    room = Room(clustered(*(node(f"n{i:02}", cpu=25 - i % 2) for i in range(9))))
    assert room.placement(wanted) is None


def test_beyond_the_bound_the_greedy_choice_decides():
    """The same with one of the fives in two parts: 17 bundles, for which greed finds no place."""
    assert (MOST_BUNDLES, MOST_NODES) == (16, 64)
    wanted = shape(*({"cpu": size} for size in [6, 6, 8] * 4 + [5] * 3 + [4, 1]), strategy="SPREAD")
    assert Room(clustered(*(node(f"n{i}", cpu=20) for i in range(5)))).placement(wanted) is None


def test_bundles_spread_out_where_the_exact_search_had_put_them_together():
    nodes_ = [node("a", cpu=5), node("b", cpu=5), node("c", cpu=2)]
    wanted = shape(*({"cpu": size} for size in (3, 3, 2, 2)), strategy="SPREAD")
    placement = Room(clustered(*nodes_)).placement(wanted)
    assert len(set(placement.node_ids)) == 3


def it_says_what_lacks(cluster, wanted, placement):
    """The bundle is one of the group's; what it lacks is what the node lacks of it, if anything."""
    assert 0 <= placement.bundle < len(wanted.bundles)
    if placement.node_id is None:
        assert placement.reason
        return
    need = wanted.total if wanted.strategy == "STRICT_PACK" else wanted.bundles[placement.bundle]
    if len(wanted.bundles) == 1 or wanted.strategy == "STRICT_PACK":
        assert placement.short == need.beyond(cluster.nodes[placement.node_id].free)
    else:
        assert not placement.short or placement.short.fits(need)


@settings(deadline=None)
@given(st.lists(nodes, min_size=1, max_size=4), st.lists(amounts, min_size=1, max_size=3))
def test_pack_uses_one_node_where_one_is_enough(reports, needs):
    cluster = clustered(*(node(f"n{i}", **report) for i, report in enumerate(reports)))
    wanted = shape(*needs, strategy="PACK")
    if any(holds(cluster, n, wanted.bundles) for n in cluster.nodes):
        placement = Room(cluster).place(wanted)
        assert isinstance(placement, BundlePlacement)
        assert len(set(placement.node_ids)) == 1


@settings(deadline=None)
@given(
    st.lists(nodes, min_size=1, max_size=4),
    st.lists(amounts, min_size=1, max_size=3),
    st.sampled_from(["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"]),
    st.booleans(),
)
def test_a_spot_without_a_reason_is_the_same(reports, needs, strategy, total):
    cluster = clustered(*(node(f"n{i}", **report) for i, report in enumerate(reports)))
    wanted = shape(*needs, strategy=strategy)
    room = Room(cluster, total=total)
    placed = room.place(wanted)
    assert room.placement(wanted) == (placed if isinstance(placed, BundlePlacement) else None)
    assert (room.placement(wanted, set(cluster.nodes)) is None) == isinstance(placed, NoPlacement)


def test_a_matching_moves_earlier_bundles_on():
    """The big bundle must not take the only node that has room for the one with a GPU."""
    cluster = clustered(node("a", cpu=4, gpu=1), node("b", cpu=4))
    wanted = shape({"cpu": 4}, {"cpu": 1, "gpu": 1}, strategy="STRICT_SPREAD")
    assert Room(cluster).place(wanted).node_ids == ("b", "a")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (shape({"cpu": 5}), NoPlacement(bundle=0, short=amount(cpu=1), node_id="a")),
        (
            shape({"cpu": 3}, {"cpu": 3}),
            NoPlacement(
                bundle=0,
                short=amount(cpu=2),
                node_id="a",
                reason="one node must hold cpu 6",
            ),
        ),
        (
            shape({"cpu": 1}, {"cpu": 3}, {"cpu": 3}, strategy="STRICT_SPREAD"),
            NoPlacement(
                bundle=0,
                reason="STRICT_SPREAD needs 3 nodes, and there are 2",
            ),
        ),
        (
            shape({"cpu": 4}, {"memory": 9}, strategy="SPREAD"),
            NoPlacement(bundle=1, short=amount(memory=4), node_id="b"),
        ),
        (
            shape({"cpu": 1}, zone="x"),
            NoPlacement(bundle=0, reason="no open node with the labels asked for is left for it"),
        ),
    ],
    ids=["one bundle", "packed", "spread", "memory", "labels"],
)
def test_a_refusal_names_the_bundle_and_the_lack(wanted, said):
    cluster = clustered(node("a", cpu=4), node("b", cpu=4, memory=5))
    assert Room(cluster).place(wanted) == said


def test_shares_of_two_devices_are_no_whole_one():
    mesh = Mesh(nodes=[node("a", cpu=4, gpu=2)])
    for i in range(2):
        mesh.state.cluster.take("a", f"x{i}", amount(), on((i, 0.5)))
    refused = Room(mesh.state.cluster).place(shape({"gpu": 1}))
    assert isinstance(refused, NoPlacement)
    assert refused.short == amount()
    assert isinstance(
        Room(mesh.state.cluster).place(shape({"gpu": 0.5}, {"gpu": 0.5})), BundlePlacement
    )


def test_a_cordoned_node_takes_nothing_but_counts_where_it_is_asked_what_could_ever_be():
    cluster = clustered(node("a", cpu=4))
    cluster.cordon("a", True)
    assert isinstance(Room(cluster).place(shape({"cpu": 1})), NoPlacement)
    assert Room(cluster).placement(shape({"cpu": 1}), {"a"}) is None
    assert isinstance(Room(cluster, total=True).place(shape({"cpu": 1})), BundlePlacement)


def test_what_is_tried_gone_is_room_and_is_there_after_all():
    cluster = clustered(node("a", cpu=4, gpu=1))
    cluster.take("a", "x", amount(cpu=3), on((0, 1)))
    wanted = shape({"cpu": 2, "gpu": 1})
    room = Room(cluster)
    assert room.placement(wanted) is None
    room.release("a", "x")
    assert room.placement(wanted) == BundlePlacement(node_ids=("a",))
    assert room.free_on("a") == amount(cpu=4, gpu=1)
    room.release("a", "x", -1)
    assert room.placement(wanted) is None
    room.release("a", "nobody")
    room.release("nowhere", "x")
    assert cluster.nodes["a"].free == amount(cpu=1)


def test_the_fullest_node_is_taken_for_one_bundle():
    cluster = clustered(node("a", cpu=8), node("b", cpu=4), node("c", cpu=2))
    assert Room(cluster).placement(shape({"cpu": 3})).node_ids == ("b",)
