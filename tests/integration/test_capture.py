"""Calls of ``placement_group`` in this process are served from given groups: with Ray's real groups."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import ray
import ray.util
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh.errors import GroupNotLeasedError, InvalidRequestError
from schedulemesh.integrations import capture

PAIR = [{"CPU": 1.0}, {"CPU": 1.0}]
RAYS_OWN = {"create": placement_group, "remove": remove_placement_group}


@pytest.fixture
def lease(ray_cluster):
    """Three groups as a lease has them: two of two bundles, one of one."""
    groups = [
        RAYS_OWN["create"](bundles, strategy="PACK", lifetime="detached")
        for bundles in (PAIR, PAIR, [{"CPU": 2.0}])
    ]
    ray.get([group.ready() for group in groups])
    yield SimpleNamespace(placement_groups=groups)
    for group in groups:
        RAYS_OWN["remove"](group)


@pytest.fixture
def library():
    """A module that imported Ray's functions before anything was captured, as libraries do."""
    module = ModuleType("a_library_on_ray")
    code = "from ray.util.placement_group import placement_group, remove_placement_group"
    exec(code, vars(module))
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def state_of(group: PlacementGroup) -> str:
    return placement_group_table(group)["state"]


@ray.remote
def group_of_this_task():
    return ray.util.get_current_placement_group()


def test_a_library_gets_the_groups_of_the_lease_and_gives_them_back(lease, library):
    with capture(lease) as captured:
        first = library.placement_group(PAIR, strategy="STRICT_PACK", name="workers")
        second = ray.util.placement_group(bundles=PAIR)
        assert {first, second} == set(lease.placement_groups[:2])
        assert first.wait(30)
        in_first = PlacementGroupSchedulingStrategy(first, placement_group_bundle_index=1)
        task = group_of_this_task.options(scheduling_strategy=in_first, num_cpus=1)
        assert ray.get(task.remote()) == first

        library.remove_placement_group(first)
        assert state_of(first) == "CREATED"
        assert first in captured.free
        assert second not in captured.free
        assert library.placement_group(PAIR) == first


def test_what_the_lease_does_not_have_is_created_by_ray(lease, library):
    with capture(lease):
        other = library.placement_group([{"CPU": 0.5}])
        assert other not in lease.placement_groups
        assert other.wait(30)
        library.remove_placement_group(other)
        assert state_of(other) == "REMOVED"


def test_a_strict_capture_refuses_and_says_why(lease, library):
    with capture(lease, strict=True):
        library.placement_group(PAIR)
        with pytest.raises(GroupNotLeasedError) as refused:
            library.placement_group([{"CPU": 3.0}])
    said = str(refused.value)
    assert "[{'CPU': 3.0}] with the strategy 'PACK'" in said
    assert "group 1: it has 2 bundles, 1 are requested" in said
    assert "group 2: its bundle 0 is {'CPU': 2.0}, requested is {'CPU': 3.0}" in said
    assert "group 0 is in use" in said


def test_a_strategy_that_ray_does_not_know_is_refused_by_ray(lease, library):
    with (
        capture(lease, strict=True),
        pytest.raises(ValueError, match="Invalid placement group strategy XX"),
    ):
        library.placement_group(PAIR, strategy="XX")


@pytest.mark.parametrize("given", [3, None, "groups", [object()]])
def test_what_has_no_placement_groups_is_not_captured(given):
    with pytest.raises(InvalidRequestError, match="allowed is a lease, or a sequence of"):
        capture(given)


def test_bundles_that_are_pinned_to_their_nodes_are_served(lease, library):
    node = next(node for node in ray.nodes() if node["Alive"])
    here, label = f"node:{node['NodeManagerAddress']}", "ray.io/node-id"
    with capture(lease, strict=True):
        group = library.placement_group([{"CPU": 2.0, here: 0.001}])
        assert group == lease.placement_groups[2]
        library.remove_placement_group(group)
        selected = library.placement_group(
            [{"CPU": 2.0}], bundle_label_selector=[{label: node["NodeID"]}]
        )
        assert selected == group
        library.remove_placement_group(selected)
        with pytest.raises(GroupNotLeasedError, match=r"not on a node with node:10\.9\.8\.7"):
            library.placement_group([{"CPU": 2.0, "node:10.9.8.7": 0.001}])
        with pytest.raises(GroupNotLeasedError, match=f"not on a node with {label}=none"):
            library.placement_group([{"CPU": 2.0}], bundle_label_selector=[{label: "none"}])


def test_larger_groups_serve_where_that_is_allowed(lease, library):
    with capture(lease, larger=True):
        assert library.placement_group([{"CPU": 1.0}]) == lease.placement_groups[2]
        assert library.placement_group([{"CPU": 1.0}]) in lease.placement_groups[:2]


def test_afterwards_everything_is_as_before(lease, library):
    captured = capture(lease).start()
    assert library.placement_group is not RAYS_OWN["create"]
    late = ModuleType("imported_while_captured")
    sys.modules[late.__name__] = late
    exec("from ray.util import placement_group", vars(late))
    captured.stop()
    captured.stop()
    del sys.modules[late.__name__]
    for holder in (library, late, ray.util, sys.modules["ray.util.placement_group"]):
        assert holder.placement_group is RAYS_OWN["create"]
    assert library.remove_placement_group is RAYS_OWN["remove"]


def test_of_two_captures_the_later_one_is_asked_first(lease, library):
    outer, inner = lease.placement_groups[:1], lease.placement_groups[1:]
    with capture(outer):
        with capture(inner, strict=True):
            assert library.placement_group(PAIR) == inner[0]
            assert library.placement_group(PAIR) == outer[0]
        of_ray = library.placement_group(PAIR)
        assert of_ray not in lease.placement_groups
        # Ray loses what it has prepared for a group that is removed before it is placed.
        assert of_ray.wait(30)
        library.remove_placement_group(of_ray)
    with (
        capture(outer),
        pytest.raises(InvalidRequestError, match="one active capture only"),
    ):
        capture(lease).start()


def test_a_group_that_ray_has_removed_serves_nothing(lease, library):
    RAYS_OWN["remove"](lease.placement_groups[2])
    with (
        capture(lease, strict=True),
        pytest.raises(GroupNotLeasedError, match="group 2: it does not exist in Ray any more"),
    ):
        library.placement_group([{"CPU": 2.0}])


def test_a_lease_that_is_being_evicted_serves_nothing(lease, library):
    lease.preempted = lambda: True
    with (
        capture(lease, strict=True),
        pytest.raises(GroupNotLeasedError, match="The lease is being evicted"),
    ):
        library.placement_group(PAIR)
