"""What would be if some agents were gone, with the dynamic groups that they live in: quota, the pool's limit
of groups, and room for a shape on the nodes. It changes no state; dropping it is the undo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.placement.bundles import BundlePlacement, Room, on_one_node
from schedulemesh.engine.placement.group_choice import goes_along, release
from schedulemesh.engine.preemption.scenario import Scenario, VictimAgent
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState


class GroupScenario:
    """The groups that nobody uses count as gone: they cost nobody's work. What needs only one node is sought
    only on nodes that somebody leaves, because elsewhere there was no room before.
    """

    def __init__(
        self, state: MeshState, quota: Scenario, shape: GroupShape, own: str, too_many: int
    ) -> None:
        #: ``too_many`` dynamic groups of the pool ``own`` must go.
        self._state = state
        self._quota = quota
        self._shape = shape
        self._own = own
        idle = state.groups.idle()
        self.room = Room(state.cluster, waits=True)
        for group in idle:
            release(self.room, group)
        #: Where there is room although everybody stays.
        self.placement: BundlePlacement | None = self.room.placement(shape)
        #: How many groups of the pool only victims can rid it of.
        self.lacking = too_many - state.groups.idle_count(own)
        #: The nodes that somebody leaves, and how many places there.
        self._left: Counter[str] = Counter()

    def release(self, unit: VictimAgent) -> None:
        """Try this agent gone."""
        self._move(unit, 1)

    def take_back(self, unit: VictimAgent) -> None:
        """Let this agent stay after all."""
        self._move(unit, -1)

    @property
    def quota(self) -> Scenario:
        """What it says of quota alone."""
        return self._quota

    def has_room(self) -> bool:
        """Whether the nodes have room, whatever quota and limit say."""
        if self.placement is not None:
            return True
        left = {node_id for node_id, places in self._left.items() if places > 0}
        if not left:
            return False
        return (
            self.room.placement(self._shape, left if on_one_node(self._shape) else None) is not None
        )

    def enough(self) -> bool:
        """Whether quota, limit and nodes allow the group."""
        return self.lacking <= 0 and not self._quota.short_quota and self.has_room()

    def _move(self, unit: VictimAgent, sign: int) -> None:
        if sign > 0:
            self._quota.release(unit)
        else:
            self._quota.take_back(unit)
        self.lacking -= sign * frees_own(self._state, unit, self._own)
        for node_id, key in freed_by(self._state, unit):
            self.room.release(node_id, key, sign)
            self._left[node_id] += sign


def freed_by(state: MeshState, unit: VictimAgent) -> Iterator[tuple[str, str]]:
    """(node id, under which name it stands there) of all room that its leaving frees."""
    group = group_of(state, unit)
    if group is not None:
        yield from ((node_id, group.key(i)) for i, node_id in enumerate(group.node_ids))
    elif unit.agent.group_id is None and unit.agent.node_id is not None:
        yield unit.agent.node_id, unit.agent.spec.name


def frees_own(state: MeshState, unit: VictimAgent, pool_name: str) -> bool:
    """Whether a dynamic group of this pool goes with it."""
    group = group_of(state, unit)
    return group is not None and group.pool_name == pool_name


def group_of(state: MeshState, unit: VictimAgent) -> Group | None:
    """The dynamic group that goes with it."""
    group = state.groups.by_id.get(unit.agent.group_id or "")
    goes = group is not None and goes_along(group, unit.agent.spec.name)
    return group if goes else None


def room_freed(state: MeshState, unit: VictimAgent) -> Resources:
    """What its leaving frees on the nodes, in sum."""
    group = group_of(state, unit)
    return unit.agent.spec.resources if group is None else group.shape.total
