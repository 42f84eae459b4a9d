"""What the nodes could hold if nothing ran, beside the reserved placement groups that stay there.

The room of a reserved group is its pool's for as long as the pool keeps the group, whether an agent uses it
or not. No end and no eviction gives that room to a task that does not run in the group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.placers import on_one_node
from schedulemesh.engine.placement.scenario import bundle_allocations
from schedulemesh.engine.state.groups import Group, GroupPhase, bundle_of, is_bundle
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node, held_by

#: How many shapes are kept of which is known whether the nodes could hold them.
_SHAPES = 1_000


def could_hold(state: MeshState, shape: GroupShape) -> bool:
    """Whether the nodes, cordoned ones included, could hold bundles of this shape if nothing ran."""
    if not _could_hold_empty(state, shape):
        return False
    if not state.groups.reserved_groups:
        return True
    shapes: dict[GroupShape, bool] = state.spared.beside_reserved
    if shape not in shapes:
        if len(shapes) >= _SHAPES:
            shapes.clear()
        shapes[shape] = _holds_beside(state, shape, partial(keeps_room, state))
    return shapes[shape]


def only_lacks_reserved_room(state: MeshState, shape: GroupShape) -> bool:
    """Whether the nodes could hold this if nothing ran and there were no reserved placement groups."""
    return _could_hold_empty(state, shape) and not could_hold(state, shape)


def keeps_room(state: MeshState, group: Group) -> bool:
    """Whether the room of a group is its pool's, also when its agent has ended: it is reserved, its pool
    wants all that it has of its shape and is not being deleted, and none of its nodes is drained.
    """
    is_made = group.phase in (GroupPhase.CREATING, GroupPhase.READY)
    if not group.reserved or not is_made or group.leaves_for is not None:
        return False
    drains, table, pool_name = state.drains, state.groups, group.pool_name
    if pool_name in drains.ending or not drains.nodes.keys().isdisjoint(group.node_ids):
        return False
    count = table.living(pool_name, reserved=True, shape=group.shape)
    return count <= table.reserved_count(pool_name, group.shape)


def kept_keys(state: MeshState, node: Node) -> frozenset[str]:
    """The allocations on a node of the groups that keep their room."""
    if not state.groups.reserved_groups:
        return frozenset()
    return frozenset(_keys_on(state, node, partial(keeps_room, state)))


def most_free(state: MeshState, node: Node) -> Resources:
    """What would be free on a node if nothing ran."""
    return node.total - sum_of(held_by(node.allocations[key]) for key in kept_keys(state, node))


def pools_in_the_way(state: MeshState, shape: GroupShape) -> tuple[str, ...]:
    """The pools, by name, whose reserved groups take the room for bundles of this shape: each without whose
    groups there would be enough, or all of them where no single pool's are the reason.
    """
    lasting = [group for group in state.groups.by_id.values() if keeps_room(state, group)]
    pool_names = sorted({group.pool_name for group in lasting})

    def is_enough_without(pool_name: str) -> bool:
        others = {group.group_id for group in lasting if group.pool_name != pool_name}
        return _holds_beside(state, shape, lambda group: group.group_id in others)

    return tuple(filter(is_enough_without, pool_names)) or tuple(pool_names)


def room_beside(state: MeshState) -> Room:
    """The nodes as they would be if nothing ran."""
    return _room_beside(state, partial(keeps_room, state))


def _could_hold_empty(state: MeshState, shape: GroupShape) -> bool:
    if len(shape.bundles) == 1 and not shape.same_label:
        return state.cluster.could_ever(shape)
    shapes = state.cluster.could_ever_hold
    if shape not in shapes:
        if len(shapes) >= _SHAPES:
            shapes.clear()
        shapes[shape] = Room(state.cluster, total=True).placement(shape) is not None
    return shapes[shape]


def _holds_beside(state: MeshState, shape: GroupShape, is_kept: Callable[[Group], bool]) -> bool:
    """Whether there is room for bundles of this shape beside the groups that are kept, and nothing else."""
    if not on_one_node(shape):
        return _room_beside(state, is_kept).placement(shape) is not None
    room, total = Room(state.cluster, total=True), shape.total
    for node in state.cluster.with_labels(shape):
        if not total.fits(node.total):
            continue
        for key in _keys_on(state, node, is_kept):
            room.release(node.node_id, key, -1)
        if room.has_room_on(node.node_id, shape):
            return True
    return False


def _room_beside(state: MeshState, is_kept: Callable[[Group], bool]) -> Room:
    room = Room(state.cluster, total=True)
    for group in filter(is_kept, state.groups.by_id.values()):
        for node_id, key in bundle_allocations(group):
            room.release(node_id, key, -1)
    return room


def _keys_on(state: MeshState, node: Node, is_kept: Callable[[Group], bool]) -> list[str]:
    by_id = state.groups.by_id
    return [key for key in node.allocations if is_bundle(key) and is_kept(by_id[bundle_of(key)[0]])]
