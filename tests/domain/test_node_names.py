"""Names of nodes: the shortest beginnings of ids, and which node a name means."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.domain.node_names import nodes_named, short_ids, unknown_node

ids = st.sets(st.text(string.hexdigits.lower()[:3], min_size=8, max_size=8), max_size=8)


@given(ids)
def test_a_short_id_names_its_node_and_could_not_be_shorter(node_ids):
    nodes = dict.fromkeys(node_ids, ())
    for node_id, short in short_ids(node_ids).items():
        assert nodes_named(short, nodes) == [node_id]
        if len(short) > 4:
            assert len(nodes_named(short[:-1], nodes)) != 1


def test_a_name_is_an_id_then_a_host_name_or_an_address_then_the_beginning_of_an_id():
    nodes = {"238f11": ("gpu-7", "10.0.0.7"), "24ab22": ("gpu-8", "10.0.0.8"), "10": ("238f", "")}
    assert nodes_named("gpu-7", nodes) == nodes_named("10.0.0.7", nodes) == ["238f11"]
    assert nodes_named("238f", nodes) == ["10"]
    assert nodes_named("10", nodes) == ["10"]
    assert nodes_named("2", nodes) == ["238f11", "24ab22"]
    assert nodes_named("", nodes) == nodes_named("x", nodes) == []


def test_what_names_no_node_or_several_is_said_with_those_that_there_are():
    many = [f"node-{n}" for n in range(9)]
    assert str(unknown_node("x", [], [])) == "there is no node 'x'; nodes are: none yet"
    assert "node-4 and 4 others" in str(unknown_node("x", [], many))
    assert (
        str(unknown_node("2", ["24", "23"], many))
        == "node '2' may be 23, 24; give its name or more of the id"
    )
