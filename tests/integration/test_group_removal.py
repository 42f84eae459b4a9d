"""Removing groups that Ray is placing: it must get back what it has prepared for them."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from schedulemesh.core.backend import ray_group_removal
from schedulemesh.core.backend.ray_group_removal import remove_settled
from schedulemesh.core.backend.ray_groups import RayGroups
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import RayGroupRequest
from tests.integration.drivers import output_of
from tests.integration.polling import until

pytestmark = pytest.mark.usefixtures("ray_cluster")
ROUNDS = 100


def free_cpus():
    return ray.available_resources().get("CPU", 0.0)


def state_of(group: PlacementGroup) -> str:
    return str(placement_group_table(group)["state"])


def test_groups_that_are_removed_at_once_leave_nothing_taken():
    for _ in range(ROUNDS):
        remove_settled(placement_group([{"CPU": 1.0}, {"CPU": 1.0}]))
    whole = ray.cluster_resources()["CPU"]
    until(lambda: free_cpus() == whole, lambda: f"{free_cpus()} of {whole} CPUs are free")


def test_one_that_has_no_room_is_not_waited_for(monkeypatch):
    def never(_seconds):
        raise AssertionError("the removal waits")

    group = placement_group([{"CPU": 1000.0}])
    until(lambda: not ray_group_removal._is_being_placed(group), "Ray does not say it has no room")
    assert state_of(group) == "PENDING"
    # Of this module alone: threads of others may sleep at any time.
    clock = SimpleNamespace(sleep=never, monotonic=time.monotonic)
    monkeypatch.setattr(ray_group_removal, "time", clock)
    remove_settled(group)
    monkeypatch.undo()
    until(lambda: state_of(group) == "REMOVED", lambda: state_of(group))


@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_said_of_a_new_group_is_what_ray_says(parts):
    groups, node_id = RayGroups(), ray.nodes()[0]["NodeID"]
    bundles = (parse_resources({"cpu": 0.5}),) * (2 * parts)
    shape = GroupShape(bundles=bundles, strategy="PACK", parts=parts)
    request = RayGroupRequest(name=f"new-{parts}", shape=shape, node_ids=(node_id,) * len(bundles))
    made = asyncio.run(groups.create_group(request))
    assert made.placed
    assert made == asyncio.run(groups.group(made.ray_id))
    asyncio.run(groups.remove_group(made.ray_id))
    until(lambda: asyncio.run(groups.group(made.ray_id)) is None, "the group is not removed")


def test_what_ray_has_lost_is_named_by_the_doctor():
    told = output_of("tests.integration.lost_resources", 120)
    assert told["before"]["status"] == "ok"
    if not told["lost"]:
        pytest.skip("this Ray loses nothing of groups that are removed at once")
    assert told["after"]["status"] == "warning"
    assert f"nothing that lives has {told['lost']} of node" in told["after"]["found"]
