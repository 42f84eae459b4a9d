"""How many GPUs evictions could free on each node, at most.

The test costs little and says no for most tasks that wait, so that most searches for victims are not made. It
counts the GPUs of all tasks that may be evicted as far as their classes and their own times say, of what is
leaving anyway, and of the placement groups that nobody uses; devices, other resources, and what is decided
agent by agent are left to the search. What was counted on a node is kept until something changes there, or
the time of a task comes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.engine.placement.group_choice import is_removed_with
from schedulemesh.engine.placement.leaving import all_leaving
from schedulemesh.engine.placement.scenario import bundle_allocations
from schedulemesh.engine.state.groups import bundle_of, is_bundle
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node, has_labels, held_by
from schedulemesh.engine.state.tasks import RunningTask

#: Seconds by which a task counts too early, because times are rounded.
_EARLY_S = 1.0
#: For how many kinds of victims a node's count is kept.
_KINDS = 64

#: When a running task may be evicted, in seconds since 1970; infinite: never.
ReadyAt = Callable[[RunningTask], float]


class _OnNode(msgspec.Struct, kw_only=True):
    """What holds GPUs on a node, and what was counted there for one version of the node."""

    version: int
    #: The first task of each agent without a group.
    tasks: tuple[RunningTask, ...]
    #: The allocations of placement groups.
    bundles: tuple[str, ...]
    #: By the kind of victims: from when until when it holds, and the GPU units that are free or of such
    #: tasks.
    counted: dict[Hashable, tuple[float, float, int]] = {}


class GpuBound:
    """The GPUs that evictions of one kind of victims could free on each node, at one time."""

    def __init__(
        self, state: MeshState, now: float, kind: Hashable, ready_at: ReadyAt, *, in_groups: bool
    ) -> None:
        """``kind``: what ``ready_at`` depends on beside the task and the policy of preemption. ``in_groups``:
        whether agents in placement groups may be victims.
        """
        self._state = state
        self._now = now
        self._kind = kind
        self._ready_at = ready_at
        self._in_groups = in_groups

    def no_room_until(self, shape: GroupShape) -> float | None:
        """Until when the open nodes surely have too few GPUs for these bundles while the state stays as it
        is; None: they may have enough now.
        """
        cluster, missing = self._state.cluster, len(shape.bundles)
        smallest = min((bundle.gpu for bundle in shape.bundles), default=0)
        if not smallest:
            return None
        kind, now, until = self._kind, self._now, float("inf")
        for node in cluster.emptiest(len(cluster.nodes)):
            if not has_labels(node, shape):
                continue
            on_node = node.gpu_tasks
            if not isinstance(on_node, _OnNode) or on_node.version != node.version:
                on_node = self._looked_at(node)
            counted = on_node.counted.get(kind)
            if counted is None or not counted[0] <= now < counted[1]:
                counted = self._count(node, on_node)
            units = counted[2] + self._leaving.get(node.node_id, 0)
            until = min(until, counted[1])
            for key in on_node.bundles:
                # A group may change without its nodes.
                at = self._group_ready_at(key) - _EARLY_S
                if at <= now:
                    units += held_by(node.allocations[key]).gpu
                else:
                    until = min(until, at)
            missing -= units // smallest if units > 0 else 0
            if missing <= 0:
                return None
        return until

    def _count(self, node: Node, on_node: _OnNode) -> tuple[float, float, int]:
        """Count the GPU units that are free on a node, and those of the tasks there that may be evicted."""
        units, until = node.free.gpu, float("inf")
        for task in on_node.tasks:
            at = self._ready_at(task) - _EARLY_S
            if at <= self._now:
                units += task.resources.gpu
            else:
                until = min(until, at)
        if len(on_node.counted) >= _KINDS:
            on_node.counted.clear()
        counted = on_node.counted[self._kind] = (self._now, until, units)
        return counted

    def _group_ready_at(self, key: str) -> float:
        """When the group of a bundle may be removed: at once if nobody uses it, or when its agent may be
        evicted; infinite: never.
        """
        if key in self._idle:
            return float("-inf")
        if not self._in_groups:
            return float("inf")
        group = self._state.groups.by_id[bundle_of(key)[0]]
        if group.agent is None or not is_removed_with(group, group.agent):
            return float("inf")
        running = self._state.running
        tasks = (running.by_id[task_id] for task_id in running.on_agent(group.agent)[:1])
        return max(map(self._ready_at, tasks), default=float("inf"))

    @cached_property
    def _idle(self) -> frozenset[str]:
        """What the groups that nobody uses hold on nodes."""
        groups = self._state.groups.idle()
        return frozenset(key for group in groups for _, key in bundle_allocations(group))

    @cached_property
    def _leaving(self) -> dict[str, int]:
        """The GPU units that what is leaving holds, by node; some may be counted as those of tasks, too."""
        units: dict[str, int] = {}
        for item in all_leaving(self._state):
            for node_id, key in item.allocations:
                node = self._state.cluster.nodes.get(node_id)
                if node is not None and key in node.allocations:
                    gpu_units = held_by(node.allocations[key]).gpu
                    units[node_id] = units.get(node_id, 0) + gpu_units
        return units

    def _looked_at(self, node: Node) -> _OnNode:
        """What holds GPUs on a node, kept there for its present version."""
        bundles = tuple(key for key in node.allocations if is_bundle(key))
        running = self._state.running
        first = (running.on_agent(key)[:1] for key in node.allocations)
        tasks = (running.by_id[task_id] for task_ids in first for task_id in task_ids)
        made = _OnNode(
            version=node.version,
            tasks=tuple(task for task in tasks if task.resources.gpu),
            bundles=bundles,
        )
        node.gpu_tasks = made
        return made
