"""A task moves off a drained node with its state, whether we drain the node or Ray does.

The cluster lives in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.clusters.drained_nodes import DEADLINE_S
from tests.integration.drivers import output_of


@pytest.fixture(scope="module")
def told():
    """What the program told."""
    return output_of("tests.clusters.drained_nodes", 270)


def test_a_task_moves_off_a_drained_node_and_counts_on(told):
    assert told["drain"]
    assert told["first"] != told["second"]
    assert told["after_drain"] == 8
    done = {"node_id": told["first"], "by_ray": False, "agents": [], "done": True}
    assert told["status"] == [done]
    assert told["undrained"] == []


def test_a_node_that_ray_drains_is_treated_the_same(told):
    assert told["accepted"]
    assert told["third"] == told["first"]
    assert told["after_ray"] == 9
    drain = told["ray_status"]
    assert (drain["node_id"], drain["by_ray"], drain["done"]) == (told["second"], True, True)
    assert DEADLINE_S - 30 < told["ray_deadline"] <= DEADLINE_S
    assert told["refused"] == "drained_by_ray"


def test_both_moves_are_on_record_and_lost_nothing(told):
    record = {"reason": "drained", "state_saved": True, "requeued": True, "lost_work": 0.0}
    assert told["records"] == [record, record]
