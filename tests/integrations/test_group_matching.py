"""Which group of a lease serves a request, and what is said where none does."""

from __future__ import annotations

import pytest

from schedulemesh.core.backend.ray_resources import bundle_amounts, requested_resources
from schedulemesh.integrations.group_matching import (
    LeasedNode,
    PlacedGroup,
    RequestedGroup,
    best_match,
    mismatch,
)

GPU = {"CPU": 3.0, "GPU": 1.0}
CPU = {"CPU": 1.0}


def group(*bundles, nodes=None):
    return PlacedGroup(bundles=bundles, nodes=nodes or ["a"] * len(bundles))


def asks(*bundles, strategy="PACK"):
    return RequestedGroup(bundles=bundles, strategy=strategy)


def match(request, *groups, larger=False):
    return best_match(request, list(enumerate(groups)), larger=larger)


def test_a_group_with_the_same_bundles_serves():
    assert match(asks(GPU, GPU), group(CPU), group(GPU, GPU)) == 1


def test_resources_of_zero_and_rounding_make_no_difference():
    assert match(asks({"CPU": 0.1 + 0.2, "GPU": 0}), group({"CPU": 0.3})) == 0


@pytest.mark.parametrize(
    "asked", [{"GPU": 1 / 3}, {"GPU": 0.33334}, {"memory": 10**9}, {"CPU": 1 / 7}]
)
def test_what_a_lease_holds_beyond_a_request_that_is_no_whole_unit_makes_no_difference(
    asked,
):
    leased = bundle_amounts(requested_resources(asked))
    assert match(asks(asked), group(leased)) == 0
    assert match(asks(asked), group({name: 2 * n for name, n in leased.items()})) is None


def test_bundles_are_compared_by_index_because_libraries_address_them_so():
    assert match(asks(CPU, GPU), group(GPU, CPU)) is None
    assert mismatch(asks(CPU, GPU), group(GPU, CPU), larger=False) == (
        "its bundle 0 is {'CPU': 3.0, 'GPU': 1.0}, requested is {'CPU': 1.0}"
    )


def test_a_larger_group_serves_only_where_that_is_allowed():
    assert match(asks(CPU), group(GPU, GPU)) is None
    assert match(asks(CPU), group(GPU, GPU), larger=True) == 0
    assert match(asks(CPU, CPU), group(CPU, {"CPU": 0.5}), larger=True) is None
    assert match(asks(CPU, CPU), group(CPU), larger=True) is None


def test_of_several_groups_the_one_with_the_least_unused_serves():
    assert match(asks(CPU), group(GPU, GPU), group(GPU), group(CPU), larger=True) == 2
    assert match(asks(CPU), group(CPU, CPU), group(GPU), larger=True) == 1


@pytest.mark.parametrize(
    ("strategy", "nodes", "serves"),
    [
        ("PACK", ["a", "b"], True),
        ("SPREAD", ["a", "a"], True),
        ("STRICT_PACK", ["a", "a"], True),
        ("STRICT_PACK", ["a", "b"], False),
        ("STRICT_SPREAD", ["a", "b"], True),
        ("STRICT_SPREAD", ["a", "a"], False),
    ],
)
def test_a_strategy_is_judged_by_where_the_bundles_are(strategy, nodes, serves):
    found = mismatch(asks(CPU, CPU, strategy=strategy), group(CPU, CPU, nodes=nodes), larger=False)
    assert (found is None) == serves
    assert found is None or strategy in found


def test_only_the_requested_bundles_must_follow_the_strategy():
    three = group(CPU, CPU, CPU, nodes=["a", "a", "b"])
    assert match(asks(CPU, CPU, strategy="STRICT_PACK"), three, larger=True) == 0
    assert match(asks(CPU, CPU, CPU, strategy="STRICT_PACK"), three, larger=True) is None


def test_a_removed_group_and_unsupported_options_serve_nothing():
    removed = PlacedGroup(bundles=(), nodes=(), exists=False)
    assert mismatch(asks(CPU), removed, larger=True) == "it does not exist in Ray any more"
    selected = RequestedGroup(bundles=[CPU], unsupported=["topology_strategy"])
    said = mismatch(selected, group(CPU), larger=False)
    assert said == "topology_strategy cannot be satisfied by a lease"


NODES = {
    "a": LeasedNode(
        resources={"node:10.0.0.1": 1.0, "accelerator_type:H100": 1.0, "CPU": 8.0},
        labels={"zone": "x"},
    ),
    "b": LeasedNode(resources={"node:10.0.0.2": 1.0, "accelerator_type:A100": 1.0}),
}


def on_nodes(*nodes, bundle=GPU):
    return PlacedGroup(bundles=[bundle] * len(nodes), nodes=nodes, by_id=NODES)


@pytest.mark.parametrize("pin", ["node:10.0.0.1", "accelerator_type:H100"])
def test_a_bundle_that_is_pinned_to_a_node_is_served_where_the_leased_one_is_there(pin):
    # As vLLM asks for the node of its driver, and verl for a model of GPU.
    pinned = asks({**GPU, pin: 0.001}, GPU)
    assert pinned.depends_on_nodes
    assert match(pinned, on_nodes("b", "a"), on_nodes("a", "b")) == 1
    assert mismatch(pinned, on_nodes("b", "a"), larger=False) == (
        f"its bundle 0 is not on a node with {pin}"
    )
    assert not asks(GPU, GPU).depends_on_nodes


def test_more_of_a_node_than_it_has_is_not_served():
    assert match(asks({**GPU, "node:10.0.0.1": 1.5}), on_nodes("a")) is None


@pytest.mark.parametrize(("zone", "served"), [("x", True), ("in(x, y)", True), ("!x", False)])
def test_labels_are_those_of_the_leased_bundles_nodes(zone, served):
    request = RequestedGroup(bundles=[GPU], selectors=[(("zone", zone),)])
    said = mismatch(request, on_nodes("a"), larger=False)
    assert (said is None) is served
