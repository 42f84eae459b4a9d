"""Placement groups in Ray: creation on given nodes, queries, removal.

A group of several parts is several placement groups in Ray, whose names end in their numbers. Its id is the
ids of these, joined; a group that lacks one of its parts is shown with the state INCOMPLETE.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ray import PlacementGroupID
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh.core.backend.ray_capabilities import request_autoscaler
from schedulemesh.core.backend.ray_errors import refused, translated
from schedulemesh.core.backend.ray_group_removal import remove_settled
from schedulemesh.core.backend.ray_internals import end_actors, group_in_use, group_members
from schedulemesh.core.backend.ray_resources import bundle_amounts
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.placement import PART_JOINT, GroupShape
from schedulemesh.domain.resources import Resources
from schedulemesh.runtime.backend import (
    BackendError,
    BundleSlot,
    GroupMember,
    GroupView,
    RayGroupRequest,
)

#: The label that every node carries with its own id.
_NODE_ID = "ray.io/node-id"
#: Between the name of a group and the number of a part of it.
_PART = "#part"
_PART_NAME = re.compile(r"(.*)#part(\d{1,9})/(\d{1,9})", re.DOTALL)
#: Threads for calls about groups, so that these do not queue behind others; each call takes milliseconds, but
#: one that creates a group for which Ray has no room takes ``_PLACED_S``.
_THREADS = 8
#: Seconds for which the creation of a group waits until Ray has placed it, which takes milliseconds where
#: there is room; Ray accepts whole seconds only.
_PLACED_S = 1

Value = TypeVar("Value")


class RayGroups:
    """The calls about placement groups; see Backend."""

    def __init__(self) -> None:
        self._group_threads = ThreadPoolExecutor(_THREADS, "placement-groups")

    async def create_group(self, request: RayGroupRequest) -> GroupView:
        """See Backend."""
        return await self._group_call(_create_and_place, request)

    async def groups(self) -> list[GroupView]:
        """See Backend."""
        return await self._group_call(_all_groups)

    async def group(self, ray_id: str) -> GroupView | None:
        """See Backend."""
        return await self._group_call(_one_group, ray_id)

    async def members(self, ray_id: str) -> list[GroupMember]:
        """See Backend."""
        return await self._group_call(_members, ray_id)

    async def end_members(self, actor_ids: Sequence[str]) -> None:
        """See Backend."""
        await self._group_call(end_actors, actor_ids)

    async def group_in_use(self, ray_id: str) -> bool:
        """See Backend."""
        return await self._group_call(_in_use, ray_id)

    async def remove_group(self, ray_id: str) -> None:
        """See Backend."""
        await self._group_call(_remove, ray_id)

    async def request_capacity(
        self, bundles: Sequence[Resources], labels: Sequence[NodeLabels]
    ) -> None:
        """See Backend. Ray has one such request per cluster; the last one replaces all earlier ones."""
        amounts = [bundle_amounts(need) for need in bundles]
        try:
            await self._group_call(request_autoscaler, amounts, [dict(one) for one in labels])
        except RuntimeError as error:
            raise BackendError(str(error)) from error

    async def _group_call(self, function: Callable[..., Value], *args: Any) -> Value:
        loop = asyncio.get_running_loop()
        with translated():
            return await loop.run_in_executor(self._group_threads, function, *args)


def scheduling_strategy_of(slot: BundleSlot) -> PlacementGroupSchedulingStrategy:
    """Places an actor or task in a slot; where the group has more bundles that are not for the members of a
    gang, its own children use them.
    """
    bundles = [bundle_amounts(bundle) for bundle in slot.shape.bundles]
    return PlacementGroupSchedulingStrategy(
        # With its bundles given, Ray need not look them up.
        PlacementGroup(_id(slot.ray_id), bundle_cache=bundles),
        placement_group_bundle_index=slot.bundle,
        placement_group_capture_child_tasks=slot.whole and len(bundles) > 1,
    )


def _create_and_place(request: RayGroupRequest) -> GroupView:
    """Create a group, wait for a moment until Ray has placed it, and say how it is; asking again and again
    would find that out later.
    """
    ray_id, is_placed = _create(request), False
    with (
        contextlib.suppress(BackendError),
        refused(),
    ):  # removed meanwhile: whoever looks at it sees that
        is_placed = all(
            PlacementGroup(_id(one)).wait(_PLACED_S) for one in ray_id.split(PART_JOINT)
        )
    if is_placed and request.shape.parts == 1:
        # Each bundle names the label of its node, so Ray has no other place for it and need not be asked.
        # Parts that existed before may be elsewhere.
        return GroupView(
            ray_id=ray_id, name=request.name, state="CREATED", node_ids=request.node_ids
        )
    unknown = GroupView(ray_id=ray_id, name=request.name, state="UNKNOWN", node_ids=())
    with contextlib.suppress(BackendError), refused():  # it is made, so its id is to be known
        return _one_group(ray_id) or unknown
    return unknown


def _create(request: RayGroupRequest) -> str:
    shape = request.shape
    if shape.parts == 1:
        return _create_part(request.name, shape, request.node_ids)
    existing = {view.name: view.ray_id for view in _views()}
    ray_ids, at = [], 0
    for number, part in enumerate(shape.each_part):
        node_ids = request.node_ids[at : at + len(part.bundles)]
        name = f"{request.name}{_PART}{number}/{shape.parts}"
        ray_ids.append(existing.get(name) or _create_part(name, part, node_ids))
        at += len(part.bundles)
    return PART_JOINT.join(ray_ids)


def _create_part(name: str, shape: GroupShape, node_ids: Sequence[str]) -> str:
    group = placement_group(
        [bundle_amounts(bundle) for bundle in shape.bundles],
        strategy=shape.strategy,
        name=name,
        lifetime="detached",
        bundle_label_selector=[{_NODE_ID: node_id} for node_id in node_ids],
    )
    return str(group.id.hex())


def _all_groups() -> list[GroupView]:
    """Every group; the parts of one are put together by their names. Groups of others have any name."""
    groups: list[GroupView] = []
    parts: dict[tuple[str, int], dict[int, GroupView]] = {}
    for view in _views():
        part = _PART_NAME.fullmatch(view.name)
        if part is None:
            groups.append(view)
        else:
            name, index, count = part.groups()
            parts.setdefault((name, int(count)), {})[int(index)] = view
    together = (
        _together(name, [views[index] for index in sorted(views)], count)
        for (name, count), views in parts.items()
    )
    return groups + [view for view in together if view is not None]


def _views() -> list[GroupView]:
    views = (_view(ray_id, entry) for ray_id, entry in placement_group_table().items())
    return [view for view in views if view is not None]


def _one_group(ray_id: str) -> GroupView | None:
    ids = ray_id.split(PART_JOINT)
    views = [_view(one, placement_group_table(PlacementGroup(_id(one)))) for one in ids]
    if len(ids) == 1:
        return views[0]
    existing = [view for view in views if view is not None]
    name = existing[0].name.rpartition(_PART)[0] if existing else ""
    return _together(name, existing, len(ids))


def _together(name: str, existing: Sequence[GroupView], count: int) -> GroupView | None:
    """What exists of so many parts of a group as one; None: there is none of them."""
    if not existing:
        return None
    states = {view.state for view in existing}
    unplaced = sorted(states - {"CREATED"})
    state = unplaced[0] if unplaced else "CREATED"
    return GroupView(
        ray_id=PART_JOINT.join(view.ray_id for view in existing),
        name=name,
        state=state if len(existing) == count else "INCOMPLETE",
        node_ids=tuple(node_id for view in existing for node_id in view.node_ids),
    )


def _members(ray_id: str) -> list[GroupMember]:
    return [member for one in ray_id.split(PART_JOINT) for member in group_members(one)]


def _in_use(ray_id: str) -> bool:
    return any(group_in_use(one) for one in ray_id.split(PART_JOINT))


def placement_groups_of(ray_id: str, shape: GroupShape) -> list[PlacementGroup]:
    """The placement groups in Ray that a group consists of, as Ray's own objects."""
    parts = zip(ray_id.split(PART_JOINT), shape.each_part, strict=True)
    return [
        PlacementGroup(_id(one), bundle_cache=[bundle_amounts(need) for need in part.bundles])
        for one, part in parts
    ]


def _remove(ray_id: str) -> None:
    for one in ray_id.split(PART_JOINT):
        remove_settled(PlacementGroup(_id(one)))


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
