"""Applies facts to the placement groups, and to the resources that their bundles hold on nodes."""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.domain.placement import InGroup
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.state.agents import Agent, Waiting
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.groups import Group, GroupPhase, GroupTable


class GroupFacts:
    """Applies facts to the group table; nothing else may change it."""

    def __init__(self, groups: GroupTable, cluster: Cluster) -> None:
        self._groups = groups
        self._cluster = cluster

    def ensured(self, spec: PoolSpec) -> None:
        """The pool is defined (again): groups that were destroyed on demand are wanted again."""
        for key in [key for key in self._groups.dropped if key[0] == spec.name]:
            del self._groups.dropped[key]
        self._groups.define(spec.name, spec.groups)

    def node_returned(self, node_id: str) -> None:
        """A node that was taken for lost is back: jobs that have not ended yet hold there what they did."""
        for group in self._groups.by_id.values():
            if not group.shape.virtual or group.phase is not GroupPhase.READY:
                continue
            for i, bundle in enumerate(group.shape.bundles):
                if group.node_ids[i] == node_id:
                    self._cluster.confirm(node_id, group.key(i), bundle, ())

    def planned(self, fact: f.GroupPlanned) -> None:
        """A group without room as yet."""
        self._groups.add(
            Group(
                group_id=fact.group_id,
                pool_name=fact.pool_name,
                shape=fact.shape,
                reserved=fact.reserved,
                phase=GroupPhase.PLANNED,
                node_ids=fact.node_ids,
                agent=fact.agent_name,
                idle_since=fact.at,
            )
        )
        self._groups.next_number += 1

    def grew(self, fact: f.GroupGrew) -> None:
        """A bundle holds more on its node."""
        group = self._groups.by_id[fact.group_id]
        node_id = group.node_ids[fact.bundle]
        self._cluster.take(node_id, group.key(fact.bundle), fact.held, fact.devices)

    def has_all_room(self, fact: f.GroupWhole) -> None:
        """Every bundle has its room."""
        group = self._groups.by_id[fact.group_id]
        group.phase = GroupPhase.CREATING
        self._groups.sort(group)

    def ready(self, fact: f.GroupReady) -> str | None:
        """Ray has made it; the name of the agent that waits for it."""
        group = self._groups.by_id[fact.group_id]
        group.phase, group.made, group.idle_since = GroupPhase.READY, True, fact.at
        if not group.shape.virtual:
            counts = self._groups.counts[group.pool_name]
            counts.created += 1
            counts.error = ""
        self._groups.sort(group)
        for i, node_id in enumerate(group.node_ids):
            self._cluster.fulfil(node_id, group.key(i))
        return group.agent

    def claimed(self, fact: f.GroupClaimed) -> None:
        """Its room is for somebody else, after those that have claimed it before."""
        group = self._groups.by_id[fact.group_id]
        if group.leaves_for is None:
            group.leaves_for = fact.for_agent
        else:
            group.also_for = (*group.also_for, fact.for_agent)
        self._leaves(group)
        self._groups.sort(group)

    def ending(self, fact: f.GroupEnding) -> None:
        """It is being removed."""
        group = self._groups.by_id[fact.group_id]
        group.leaves_for = fact.for_agent or group.leaves_for
        self._leaves(group)
        self._groups.end(group)
        if fact.dropped:
            self._groups.drop(group.pool_name, group.shape)

    def _leaves(self, group: Group) -> None:
        for name in group.waiters:
            for i, node_id in enumerate(group.node_ids):
                self._cluster.release_for(node_id, group.key(i), name)

    def remove(self, fact: f.GroupEnded) -> Group:
        """It is gone, and so is what it held."""
        group = self._groups.remove(fact.group_id)
        for i, node_id in enumerate(group.node_ids):
            self._cluster.leave(node_id, group.key(i))
        if group.shape.virtual:
            return group
        counts = self._groups.counts[group.pool_name]
        counts.destroyed += group.made
        if fact.error:
            counts.failed_at, counts.error = fact.at, fact.error
        return group

    def admitted(self, agent: Agent, place: InGroup) -> None:
        """An agent is to run in a group: at once, or after the agent that is there now."""
        name, phase, group = agent.spec.name, agent.phase, self._groups.by_id[place.group_id]
        if group.agent not in (None, name):
            group.promised_to = name
            return
        group.agent = name
        self._groups.sort(group)
        if not isinstance(phase, Waiting):
            self.entered(agent, agent.admitted_at)
        elif phase.for_agents or phase.for_groups - {group.group_id}:
            for i, node_id in enumerate(group.node_ids):
                gpu = group.shape.bundles[i].gpu
                self._cluster.promise(node_id, group.key(i), gpu, name)

    def entered(self, agent: Agent, at: float) -> None:
        """The agent starts in its group: count it."""
        group = self._groups.by_id.get(agent.group_id or "")
        if group is None or group.shape.virtual:
            return
        counts = self._groups.counts[group.pool_name]
        counts.entered += 1
        counts.waited_s += max(0.0, at - agent.admitted_at)
        counts.reused += group.used > 0
        group.used += 1

    def member_reported(
        self,
        agent: Agent,
        place: InGroup,
        node_id: str | None,
        gpu_ids: tuple[str, ...],
        rank: int = 0,
    ) -> None:
        """The agent, or this member of a gang, reported which GPUs of this node its bundle has."""
        group = self._groups.by_id.get(place.group_id)
        need = agent.spec.bundles[rank] if agent.spec.bundles else agent.spec.resources
        if group is None or not need.gpu or need.gpu != group.shape.bundles[rank].gpu:
            return
        if node_id in (None, group.node_ids[rank]):
            bundle = group.shape.bundles[rank]
            self._cluster.confirm(group.node_ids[rank], group.key(rank), bundle, gpu_ids)

    def unclaimed(self, agent_name: str, group_ids: Iterable[str]) -> None:
        """The agent has ended, and groups that were to be removed for it need not be."""
        for group in map(self._groups.by_id.get, group_ids):
            if group is None or agent_name not in group.waiters:
                continue
            others = tuple(name for name in group.waiters if name != agent_name)
            group.leaves_for, group.also_for = (others[0] if others else None), others[1:]
            self._groups.sort(group)
            for i, node_id in enumerate(group.node_ids):
                self._cluster.release_no_more_for(node_id, group.key(i), agent_name)

    def agent_ended(self, agent: Agent, place: InGroup, at: float) -> None:
        """The agent has ended."""
        name, group = agent.spec.name, self._groups.by_id.get(place.group_id)
        if group is None:
            return
        if group.promised_to == name:
            group.promised_to = None
        if group.agent == name:
            group.agent, group.promised_to = group.promised_to, None
            group.idle_since = at
        self._groups.sort(group)
