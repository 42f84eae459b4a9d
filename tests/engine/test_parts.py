"""Placing groups of several parts, each of which is a placement group of its own in Ray."""

from __future__ import annotations

from itertools import product

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import sum_of
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.placers import BundlePlacement, NoPlacement
from schedulemesh.engine.state.cluster import Cluster
from tests.engine.builders import amount, node


def clustered(**nodes):
    cluster = Cluster()
    for name, total in nodes.items():
        cluster.see(node(name, **total))
    return cluster


def in_parts(*parts, strategy="STRICT_PACK"):
    bundles = tuple(amount(**need) for part in parts for need in part)
    return GroupShape(bundles=bundles, strategy=strategy, parts=len(parts))


def placed(cluster, shape):
    found = Room(cluster).placement(shape)
    if found is None:
        assert isinstance(Room(cluster).place(shape), NoPlacement)
        return None
    assert isinstance(found, BundlePlacement)
    for node_id in set(found.node_ids):
        here = [b for b, n in zip(shape.bundles, found.node_ids, strict=True) if n == node_id]
        assert sum_of(here).fits(cluster.nodes[node_id].free)
    return found.node_ids


def test_each_part_is_packed_on_one_node_of_its_own_choice():
    cluster = clustered(a={"cpu": 4}, b={"cpu": 4})
    part = [{"cpu": 2}, {"cpu": 2}]
    nodes = placed(cluster, in_parts(part, part))
    assert sorted(nodes) == ["a", "a", "b", "b"]
    assert nodes[0] == nodes[1]
    assert nodes[2] == nodes[3]
    whole = msgspec.structs.replace(in_parts(part, part), parts=1)
    assert placed(cluster, whole) is None, "as one group it would need one node"


def test_parts_on_one_node_take_devices_of_their_own():
    cluster = clustered(a={"cpu": 8, "gpu": 3})
    part = [{"cpu": 1, "gpu": 1}]
    assert placed(cluster, in_parts(part, part, part)) == ("a", "a", "a")
    assert placed(cluster, in_parts(part, part, part, part)) is None


def test_parts_are_placed_where_the_first_choice_leaves_no_room_for_the_next():
    cluster = clustered(a={"cpu": 3}, b={"cpu": 4})
    small, large = [{"cpu": 1}, {"cpu": 2}], [{"cpu": 2}, {"cpu": 2}]
    assert placed(cluster, in_parts(small, large)) == ("a", "a", "b", "b")
    # Two parts of 3 and one of 4 on nodes with 6 and 4: the one of 4 must not take the larger node.
    cluster = clustered(a={"cpu": 6}, b={"cpu": 4})
    middle = [{"cpu": 3}]
    assert placed(cluster, in_parts([{"cpu": 4}], middle, middle)) == ("b", "a", "a")
    assert placed(cluster, in_parts(middle, [{"cpu": 4}], middle)) == ("a", "b", "a")


def test_the_strategy_spreads_each_part_by_itself():
    cluster = clustered(a={"cpu": 2}, b={"cpu": 2})
    part = [{"cpu": 1}, {"cpu": 1}]
    nodes = placed(cluster, in_parts(part, part, strategy="STRICT_SPREAD"))
    assert sorted(nodes[:2]) == sorted(nodes[2:]) == ["a", "b"]


def test_a_refusal_names_the_bundle_without_room():
    cluster = clustered(a={"cpu": 4})
    part = [{"cpu": 1}, {"cpu": 2}]
    found = Room(cluster).place(in_parts(part, part))
    assert isinstance(found, NoPlacement)
    assert found.bundle == 2


totals = st.lists(st.integers(1, 6), min_size=1, max_size=3)
sizes = st.lists(st.integers(1, 4), min_size=2, max_size=4)


@settings(max_examples=150, deadline=None)
@given(totals, sizes)
def test_parts_on_one_node_each_are_placed_wherever_there_is_a_way(cpus, parts):
    cluster = clustered(**{f"n{i}": {"cpu": cpu} for i, cpu in enumerate(cpus)})
    possible = any(
        all(
            sum(p for p, n in zip(parts, chosen, strict=True) if n == i) <= cpu
            for i, cpu in enumerate(cpus)
        )
        for chosen in product(range(len(cpus)), repeat=len(parts))
    )
    assert (placed(cluster, in_parts(*([{"cpu": p}] for p in parts))) is not None) == possible
