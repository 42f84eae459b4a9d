"""Jobs on three nodes: the claim follows the work, and a node that fails in mid-job takes nothing else along.

The cluster is in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.integration.drivers import output_of


@pytest.fixture(scope="module")
def told():
    """What the program told."""
    return output_of("tests.clusters.jobs_on_nodes", 300)


def test_the_claim_of_a_job_is_where_ray_has_placed_its_work(told):
    """So that the room is not counted twice: the next task gets the node that the job does not use."""
    assert told["follows"] == {
        "nodes": 3,
        "external": {},
        "other": True,
        "claimed": True,
        "beyond_claim": {},
    }


@pytest.mark.parametrize(("failed", "attempt"), [("of_work", 2), ("of_runner", 3)])
def test_a_job_returns_once_when_a_node_fails(told, failed, attempt):
    assert told[failed] == {
        "attempt": attempt,
        "state": "running",
        "of_the_first": [],
        "runs": True,
        "actors": ["work"],
    }


def test_nothing_of_it_is_left(told):
    assert told["left"] == []
