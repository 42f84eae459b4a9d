"""Published allocations on Alibaba's openb trace, reproduced through the engine's own node state."""

from __future__ import annotations

import pytest

from benchmarks.openb import MAX_DIFFERENCE, cluster, replay

SEED = 42


@pytest.mark.parametrize("policy", ["05-BestFit", "06-FGD"])
def test_the_published_allocation_is_reproduced(policy):
    run = replay(policy, SEED)
    assert run.difference <= MAX_DIFFERENCE, run


def test_a_random_node_does_about_as_badly_as_published():
    run = replay("01-Random", SEED)
    assert run.difference <= 1.0, (
        run
    )  # our random numbers are not the published ones; their seeds differ by 0.8


def test_the_cluster_is_the_one_of_the_trace():
    nodes = cluster(SEED).nodes
    assert len(nodes) == 1213
    assert sum(len(node.devices) for node in nodes.values()) == 6212
