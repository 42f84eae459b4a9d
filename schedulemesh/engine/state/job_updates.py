"""Applies facts to the claims of jobs, and says where they are."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.placement import GroupShape, InGroup, OnNode
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.job_facts import JobClaimMoved
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.devices import devices_for, gpu_of, worst_devices
from schedulemesh.engine.state.groups import Group, GroupPhase, GroupTable


class JobFacts:
    """Applies facts to the claims of jobs; nothing else may move them."""

    def __init__(self, agents: dict[str, Agent], groups: GroupTable, cluster: Cluster) -> None:
        self._agents, self._groups, self._cluster = agents, groups, cluster

    def claim_moved(self, fact: JobClaimMoved) -> None:
        """The claim is released where it was, and held where the fact says."""
        agent = self._agents[fact.agent_name]
        for node_id, key in allocations_of(self._groups, agent):
            self._cluster.leave(node_id, key)
        group = self._groups.by_id.get(fact.group_id)
        if group is None:
            group = self._new_group(agent, fact)
        bundles = tuple(amount for _, amount in fact.parts)
        shape = msgspec.structs.replace(group.shape, bundles=bundles)
        self._groups.reshape(group, shape, tuple(node_id for node_id, _ in fact.parts))
        for bundle, (node_id, amount) in enumerate(fact.parts):
            self._take(node_id, group.key(bundle), amount)
        self._cluster.touch(agent.node_id)

    def _new_group(self, agent: Agent, fact: JobClaimMoved) -> Group:
        """A virtual group for a job whose claim was held without one."""
        name, node_id = agent.spec.name, agent.node_id or fact.parts[0][0]
        shape = GroupShape(bundles=(agent.spec.resources,), strategy="PACK", virtual=True)
        group = Group(
            group_id=fact.group_id,
            pool_name=agent.spec.pool_name,
            shape=shape,
            reserved=False,
            phase=GroupPhase.READY,
            node_ids=(node_id,),
            agent=name,
            idle_since=fact.at,
        )
        self._groups.add(group)
        self._groups.next_number += 1
        agent.place = InGroup(group_id=fact.group_id, node_id=node_id, path="created")
        return group

    def _take(self, node_id: str, key: str, amount: Resources) -> None:
        node = self._cluster.nodes.get(node_id)
        if node is None:
            return
        gpu, free = amount.gpu, node.devices
        devices = devices_for(free, gpu) or worst_devices(free, gpu)
        self._cluster.take(node_id, key, msgspec.structs.replace(amount, gpu=0), devices)


def allocations_of(groups: GroupTable, agent: Agent) -> list[tuple[str, str]]:
    """The nodes and keys of the allocations that an agent, or its group, has."""
    group = groups.by_id.get(agent.group_id or "")
    if group is not None:
        return [(node_id, group.key(i)) for i, node_id in enumerate(group.node_ids)]
    return [(agent.place.node_id, agent.spec.name)] if isinstance(agent.place, OnNode) else []


def claimed_by_node(groups: GroupTable, cluster: Cluster, agent: Agent) -> dict[str, Resources]:
    """What is allocated to an agent, by node."""
    claimed: dict[str, Resources] = {}
    for node_id, key in allocations_of(groups, agent):
        node = cluster.nodes.get(node_id)
        allocation = None if node is None else node.allocations.get(key)
        if allocation is not None:
            amount = msgspec.structs.replace(allocation.held, gpu=gpu_of(allocation.devices))
            claimed[node_id] = claimed.get(node_id, NOTHING) + amount
    return claimed
