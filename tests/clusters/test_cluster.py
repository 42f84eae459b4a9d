"""Three nodes: an eviction makes room on one node, or is none; a cordoned node takes nobody.

The cluster lives in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.integration.drivers import output_of


@pytest.fixture(scope="module")
def told():
    """What the program told."""
    return output_of("tests.clusters.three_nodes", 270)


def test_agents_are_spread_over_half_full_nodes(told):
    assert all(answer["success"] for answer in told["half"])
    nodes = [answer["really_on"] for answer in told["half"]]
    assert len(set(nodes)) == 3
    assert nodes == [answer["agent"]["node_id"] for answer in told["half"]]


def test_a_task_of_a_whole_node_evicts_what_is_on_one_node(told):
    whole = told["whole"]
    assert whole["success"], whole
    assert [victim["task_id"] for victim in whole["preempted"]] == ["half-0"]
    assert whole["really_on"] == whole["agent"]["node_id"] == told["half"][0]["really_on"]
    assert told["tasks_after"] == ["half-1", "half-2", "whole"]
    dry = told["dry"]
    assert dry["success"]
    assert [victim["task_id"] for victim in dry["preempted"]] == ["half-0"]
    assert dry["agent"]["node_id"] == whole["really_on"]


def test_a_task_that_no_eviction_can_place_evicts_nobody(told):
    vain = told["too_high"]
    assert (vain["success"], vain["reason"]) == (False, "preemption_failed")
    assert vain["short"]["node"] == {"cpu": 2.0}
    huge = told["bigger_than_any"]
    assert (huge["success"], huge["reason"]) == (False, "cluster_out_of_resources")
    assert told["tasks_before"] == ["half-0", "half-1", "half-2"]


def test_a_cordoned_node_takes_no_agents(told):
    assert told["cordon-half-1"]
    assert told["cordon-half-2"]
    refused = told["cordoned"]
    assert (refused["success"], refused["reason"]) == (False, "preemption_failed")
    assert told["tasks_cordoned"] == told["tasks_after"], "who is there stays"
    assert told["opened"]["success"]
    assert told["opened"]["really_on"] == told["half"][2]["really_on"]
