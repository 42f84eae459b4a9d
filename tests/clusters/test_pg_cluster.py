"""Placement groups on three nodes: every strategy is placed as decided; groups of a dead node are recreated.

The cluster lives in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.clusters.pg_three_nodes import BUNDLES
from tests.integration.drivers import output_of


@pytest.fixture(scope="module")
def told():
    """What the program told."""
    return output_of("tests.clusters.pg_three_nodes", 200)


@pytest.mark.parametrize("strategy", BUNDLES)
def test_groups_of_every_strategy_are_on_the_nodes_of_the_state(told, strategy):
    seen = told[strategy]
    assert seen["made"]["placement_groups"] == {"reserved": 1, "ready": 1, "unplaced": []}
    for kind, path in (("reserved", "reserved"), ("dynamic", "created")):
        answer = seen[kind]
        assert answer["success"], answer
        assert answer["placement_group"]["path"] == path
        nodes = answer["placement_group"]["node_ids"]
        assert answer["agent"]["node_id"] == nodes[0]
        assert seen["standing"]["real"][answer["placement_group"]["name"]] == nodes
        if strategy == "STRICT_PACK":
            assert len(set(nodes)) == 1
        if strategy in ("STRICT_SPREAD", "SPREAD"):
            assert len(set(nodes)) == len(BUNDLES[strategy])
    assert seen["reserved"]["really_on"] == seen["reserved"]["agent"]["node_id"]
    assert seen["standing"]["book"] == seen["standing"]["real"]
    assert set(seen["standing"]["states"]) == {"CREATED"}


def test_groups_are_on_nodes_with_their_labels_or_report_that_none_exist(told):
    (nodes,) = told["labelled_on"].values()
    assert [told["zones"][node] for node in nodes] == ["b"]
    nowhere = told["nowhere"]["placement_groups"]
    assert nowhere["ready"] == 0
    assert "labels" in nowhere["unplaced"][0]["error"]


@pytest.mark.parametrize("strategy", BUNDLES)
def test_members_of_a_gang_run_where_its_placement_says(told, strategy):
    seen = told[f"gang {strategy}"]
    assert seen["really_on"] == seen["nodes"]
    distinct = len(set(seen["nodes"]))
    assert distinct == (3 if "SPREAD" in strategy else 1)


def test_a_gang_of_one_zone_runs_on_nodes_with_the_same_label(told):
    seen = told["gang zone"]
    assert seen["really_on"] == seen["nodes"]
    (zone,) = {told["zones"][node] for node in seen["nodes"]}
    assert zone in ("a", "b")


def test_agents_of_a_dead_node_are_lost_and_its_groups_recreated(told):
    assert told["before_death"]["placement_groups"]["ready"] == 4
    assert told["hit"]
    assert set(told["survivors"]) == set(told["agents"]) - set(told["hit"])
    after = told["after_death"]
    assert after["success"], after
    assert after["placement_group"]["path"] == "reserved"
    assert told["doomed"] not in after["placement_group"]["node_ids"]


def test_nothing_is_left_in_ray(told):
    assert told["left"] == []
