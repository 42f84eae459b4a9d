"""There and back: a tree that moves to another layout and back again is what it was, bit by bit.

The environment variable ROUND_TRIPS sets the number of cases (default 150).
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from schedulemesh.dispatch import Jagged, shard
from tests.core.moves import moved
from tests.dispatch.random_trees import arrays, bits, trees
from tests.dispatch.strategies import SPLITTING, layouts, shardings

np = pytest.importorskip("numpy")

CASES = int(os.environ.get("ROUND_TRIPS", "150"))
many = settings(
    max_examples=CASES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@many
@given(trees(), st.integers(1, 3), st.sampled_from([1, 40, 1 << 30]))
def test_a_tree_that_moves_there_and_back_is_unchanged(case, nodes, round_bytes):
    tree, source, destination, sizes = case
    parts = shard(tree, source).parts
    over = moved(parts, source, destination, sizes, 1000, round_bytes, nodes)
    expected = shard(tree, destination).parts
    for rank, part in enumerate(over):
        assert {name: bits(part[name]) for name in tree} == {
            name: bits(expected[rank][name]) for name in tree
        }
    again = moved(over, destination, source, sizes, 1000, round_bytes, nodes)
    for rank, part in enumerate(again):
        assert {name: bits(part[name]) for name in tree} == {
            name: bits(parts[rank][name]) for name in tree
        }


@many
@given(st.data())
def test_jagged_batches_come_back_bit_by_bit(data):
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    batch = Jagged(data.draw(arrays((sum(lengths),))), tuple(lengths))
    layout = data.draw(layouts())
    drawn = data.draw(shardings((len(lengths),), SPLITTING, layout))
    # The last dim of a jagged batch is within the rows: count from the first.
    rows = tuple(
        (name, structs.replace(how, dim=0) if hasattr(how, "dim") else how)
        for name, how in drawn.placements
    )
    spec = structs.replace(drawn, placements=rows)
    again = shard(batch, spec).gather()
    assert again.lengths == batch.lengths
    assert bits(again.values) == bits(batch.values)
