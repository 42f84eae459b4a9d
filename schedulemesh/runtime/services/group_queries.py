"""Queries about placement groups: the state as plain data, unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from schedulemesh.api.pools import (
    AllGroups,
    GroupCounts,
    PlacementGroupRow,
    PoolGroups,
    ReservedGroups,
    UnplacedGroup,
)
from schedulemesh.engine.admission.refusals import unplaced
from schedulemesh.engine.state.agents import Starting, Waiting
from schedulemesh.engine.state.groups import Group, GroupPhase, PoolCounts
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.groups.warm_pool import WarmPool


class GroupViews:
    """The queries, by name."""

    def __init__(self, state: MeshState, groups: Groups, ready: WarmPool, now: float) -> None:
        self._state = state
        self._groups = groups
        self._ready = ready
        self._now = now

    def stats(self, pool_name: str | None = None) -> AllGroups:
        """The groups of every pool that keeps or still has any (of one pool), in numbers and one by one."""
        names = [
            name
            for name, account in self._state.ledger.accounts.items()
            if pool_name in (None, name) and (account.spec.groups is not None or self._of([name]))
        ]
        return {**self._numbers(names), "pools": {name: self._pool(name) for name in names}}

    def reserved(self, pool_name: str) -> ReservedGroups:
        """How many reserved groups of a pool there are and stand ready, and which cannot, and why."""
        reserved_groups = [group for group in self._of([pool_name]) if group.reserved]
        return {
            "reserved": len(reserved_groups),
            "ready": sum(group.phase is GroupPhase.READY for group in reserved_groups),
            "unplaced": self._unplaced(pool_name),
        }

    def _pool(self, name: str) -> PoolGroups:
        return {
            **self._numbers([name]),
            "groups": [self._group(group) for group in self._of([name])],
            "unplaced": self._unplaced(name),
            "warm": self._ready.status(self._state, name),
        }

    def _numbers(self, names: Sequence[str]) -> GroupCounts:
        """Groups that exist, by kind and use; what happened so far; and who waits for one now."""
        groups = list(self._of(names))
        counts = [self._state.groups.counts.get(name, PoolCounts()) for name in names]
        in_use = sum(group.agent is not None for group in groups)
        entered = sum(c.entered for c in counts)
        return {
            "reserved": sum(group.reserved for group in groups),
            "dynamic": sum(not group.reserved for group in groups),
            "free": sum(g.agent is None and g.phase is GroupPhase.READY for g in groups),
            "in_use": in_use,
            "created": sum(c.created for c in counts),
            "reused": sum(c.reused for c in counts),
            "destroyed": sum(c.destroyed for c in counts),
            "waiting": sum(self._waits(agent) for name in names for agent in self._agents_of(name)),
            "mean_wait": sum(c.waited_s for c in counts) / entered if entered else 0.0,
        }

    def _waits(self, agent_name: str) -> bool:
        """Whether the agent waits for its group to be created."""
        agent = self._state.agents[agent_name]
        if isinstance(agent.phase, Waiting):
            return True
        group = self._state.groups.by_id.get(agent.group_id or "")
        return isinstance(agent.phase, Starting) and (
            group is None or group.phase is not GroupPhase.READY
        )

    def _agents_of(self, pool_name: str) -> set[str]:
        return self._state.agents_of.get(pool_name, set())

    def _of(self, names: Sequence[str]) -> list[Group]:
        """The placement groups of these pools, without virtual ones, which only hold the claims of jobs."""
        groups = self._state.groups.by_id.values()
        return [g for g in groups if g.pool_name in names and not g.shape.virtual]

    def _unplaced(self, pool_name: str) -> list[UnplacedGroup]:
        return [
            {
                "bundles": [bundle.public() for bundle in shape.bundles],
                "placement_strategy": shape.strategy,
                "bundle_label_selector": dict(shape.node_labels),
                "error": str(error),
            }
            for shape, error in unplaced(self._state, pool_name)
        ]

    def _group(self, group: Group) -> PlacementGroupRow:
        idle = group.agent is None and group.phase is GroupPhase.READY
        return {
            "id": group.group_id,
            "name": self._groups.name(group.group_id),
            "reserved": group.reserved,
            "phase": group.phase.value,
            "bundles": [bundle.public() for bundle in group.shape.bundles],
            "placement_strategy": group.shape.strategy,
            "node_ids": list(group.node_ids),
            "agent": group.agent,
            "idle_s": max(0.0, self._now - group.idle_since) if idle else 0.0,
        }
