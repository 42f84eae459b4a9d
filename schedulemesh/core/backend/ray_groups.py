"""Placement groups in Ray: made where the book says, looked at, removed."""

from __future__ import annotations

from typing import Any

import msgspec
import ray
from ray import PlacementGroupID
from ray.core.generated import gcs_pb2
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh.core.backend.ray_resources import bundle_amounts
from schedulemesh.domain.placement import GroupShape

#: The label that every node carries with its own id.
_NODE_ID = "ray.io/node-id"


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group to be made."""

    name: str
    shape: GroupShape
    #: The node of each bundle.
    node_ids: tuple[str, ...]


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group as Ray sees it."""

    ray_id: str
    name: str
    #: PENDING, PREPARED, CREATED or RESCHEDULING; removed ones are not shown.
    state: str
    #: The node of each bundle; empty where it has none.
    node_ids: tuple[str, ...]

    @property
    def placed(self) -> bool:
        """Whether every bundle stands on its node."""
        return self.state == "CREATED"


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """An actor in a placement group, whosoever it is."""

    #: Empty: it has none.
    name: str
    namespace: str
    node_id: str
    #: 0: it has no process yet.
    pid: int


class BundleSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the first bundle of a placement group."""

    ray_id: str
    shape: GroupShape


class RayGroups:
    """The calls about placement groups; each may block for some milliseconds."""

    def create_group(self, request: GroupRequest) -> str:
        """Ray's id of a new detached group, which Ray goes on to place. Raises RayError for a taken name."""
        group = placement_group(
            [bundle_amounts(bundle) for bundle in request.shape.bundles],
            strategy=request.shape.strategy,
            name=request.name,
            lifetime="detached",
            bundle_label_selector=[{_NODE_ID: node_id} for node_id in request.node_ids],
        )
        return str(group.id.hex())

    def groups(self) -> list[GroupView]:
        """Every group that is not removed, whosoever it is."""
        found = (_view(ray_id, entry) for ray_id, entry in placement_group_table().items())
        return [view for view in found if view is not None]

    def group(self, ray_id: str) -> GroupView | None:
        """One group; None: it is removed."""
        return _view(ray_id, placement_group_table(PlacementGroup(_id(ray_id))))

    def members(self, ray_id: str) -> list[GroupMember]:
        """The actors in a group that are not dead."""
        group_id = bytes.fromhex(ray_id)
        # Ray shows this by no public call without its dashboard.
        accessor = ray._private.state.state._connect_and_get_accessor()  # noqa: SLF001
        entries = accessor.get_actor_table(None, None)
        # Most actors are elsewhere: reading their entries would take longer than looking for the id.
        read = (gcs_pb2.ActorTableData.FromString(e) for e in entries if group_id in e)
        return [
            GroupMember(
                name=data.name,
                namespace=data.ray_namespace,
                node_id=data.address.node_id.hex(),
                pid=data.pid,
            )
            for data in read
            if data.placement_group_id == group_id and data.state != gcs_pb2.ActorTableData.DEAD
        ]

    def remove_group(self, ray_id: str) -> None:
        """Begin to remove a group; Ray ends what lives in it."""
        remove_placement_group(PlacementGroup(_id(ray_id)))

    def ask_autoscaler(self, bundles: list[dict[str, float]]) -> None:
        """Have Ray's autoscaler make room for these bundles beside all else; none: for nothing more."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=bundles)


def scheduling_strategy_of(slot: BundleSlot) -> PlacementGroupSchedulingStrategy:
    """What puts an actor or task into a slot; where there are more bundles, its own children use them."""
    bundles = [bundle_amounts(bundle) for bundle in slot.shape.bundles]
    return PlacementGroupSchedulingStrategy(
        # With its bundles told, Ray need not be asked for them.
        PlacementGroup(_id(slot.ray_id), bundle_cache=bundles),
        placement_group_bundle_index=0,
        placement_group_capture_child_tasks=len(bundles) > 1,
    )


def _id(ray_id: str) -> PlacementGroupID:
    return PlacementGroupID(bytes.fromhex(ray_id))


def _view(ray_id: str, entry: dict[str, Any]) -> GroupView | None:
    if not entry or entry["state"] == "REMOVED":
        return None
    nodes = entry["bundles_to_node_id"]
    return GroupView(
        ray_id=ray_id,
        name=str(entry["name"]),
        state=str(entry["state"]),
        node_ids=tuple(nodes[index] for index in sorted(nodes)),
    )
