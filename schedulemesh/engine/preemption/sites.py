"""Sites: where a place for an incoming task could be made, and the candidates there.

Each kind of shortage has its site: a node for what needs one node; all nodes together for bundles that may be
spread, and before them each domain of the topology where they are to be in one; the group of one victim; and
a site without nodes where only quota or the number of groups is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources, least, sum_of
from schedulemesh.domain.topology import Topology
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import release
from schedulemesh.engine.placement.leaving import Leaving, release_all
from schedulemesh.engine.placement.placers import on_one_node
from schedulemesh.engine.placement.scenario import Allocations, Demand, Scenario
from schedulemesh.engine.preemption.node_summary import (
    NodeSummary,
    Place,
    agents_on,
    summary_of,
)
from schedulemesh.engine.preemption.victims import VictimAgent, VictimAgents, order_of
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node, has_labels
from schedulemesh.engine.state.tasks import TaskClass

#: In so many domains of the topology a place is sought by itself; further ones only as part of all nodes.
_DOMAINS = 16

#: A site at which nothing is known of the victims beforehand.
_NO_BOUND: Place = (float("-inf"), 0, 0.0, "")


#: What is to have room on nodes, and what of them is counted as gone, which others may have claimed in part.
Shortage = tuple[GroupShape, tuple[tuple[Allocations, tuple[tuple[str, Resources], ...]], ...]]


class Site(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a place is to be made; without a node, one that needs none."""

    #: No victims of the site come before this.
    bound: Place = _NO_BOUND
    node: Node | None = None
    #: What the node lacks, and what its agents would free.
    lack: Resources = NOTHING
    summary: NodeSummary | None = None
    #: Whether the agents on all nodes are candidates.
    everywhere: bool = False
    #: The nodes of a domain of the topology, if the place is to be made there.
    node_ids: tuple[str, ...] = ()
    #: The victim whose group is taken as it is.
    preempts_group_of: VictimAgent | None = None


class KnownNodes:
    """What searches have found out about nodes, by what is to have room there and what leaves them anyway. It
    holds for tasks of all priorities, and whoever the candidates are, as long as the state does not change.
    """

    def __init__(self, *, any_site: bool = False) -> None:
        #: Whether the question is only if there is a site at all, so that the first one found will do.
        self.any_site = any_site
        #: How long searches surely find no more than these have while the state stays as it is.
        self.until = float("inf")
        #: Whether anything was searched: there were candidates.
        self.searched = False
        self.sites: dict[Shortage, list[Site]] = {}
        #: What one victim must free at least; None: none is enough.
        self.least_lack: dict[Shortage, Resources | None] = {}

    @property
    def lowest_top(self) -> float:
        """Victims all of whose priorities are lower make no room on any node; minus infinity where no nodes
        were searched.
        """
        bounds = (site.bound[0] for sites in self.sites.values() for site in sites)
        return min(bounds, default=float("-inf"))


class Sites:
    """The sites of one demand."""

    def __init__(
        self,
        state: MeshState,
        demand: Demand,
        agents: VictimAgents,
        now: float,
        known_nodes: KnownNodes | None = None,
        leaving: tuple[Leaving, ...] = (),
    ) -> None:
        self.state = state
        self.leaving = leaving
        self.demand = demand
        self.shape = demand.shape
        self.one_node = demand.shape is not None and on_one_node(demand.shape)
        self.agents = agents
        self._now = now
        self.known = known_nodes or KnownNodes()

    @cached_property
    def room(self) -> Room:
        """The nodes without idle groups and what is leaving. Victims leave before anything is put there."""
        room = Room(self.state.cluster, waits=True)
        if self.shape is not None:
            for group in self.state.groups.idle():
                release(room, group)
            release_all(room, self.leaving)
        return room

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario of all attempts, with nobody released; idle groups count as removed."""
        too_many = self.demand.too_many_groups
        if too_many > 0:
            too_many -= self.state.groups.idle_count(self.demand.pool_name)
        demand = msgspec.structs.replace(self.demand, too_many_groups=too_many)
        return Scenario(self.room, demand)

    @cached_property
    def nodes(self) -> list[Site]:
        """The nodes that would have room if all agents left that could be victims."""
        return self._all_nodes if self.agents.by_priority else list(self._by_tier(self._all_nodes))

    @cached_property
    def _all_nodes(self) -> list[Site]:
        """The same, with bounds by priority, where all running agents are candidates."""
        if self.shape is None:
            return []
        sites, shortage = self.known.sites, self._shortage_of(self.shape)
        if shortage not in sites:
            sites[shortage] = list(self._nodes(self.shape))
        return sites[shortage]

    def _shortage_of(self, shape: GroupShape) -> Shortage:
        return shape, tuple((item.allocations, item.claimed) for item in self.leaving)

    @cached_property
    def least_lack(self) -> Resources | None:
        """No victim makes room that frees less than this; None: none does by itself."""
        if self.shape is None or self.scenario.initial is not None or not self.one_node:
            return NOTHING
        least_lacks, shortage = self.known.least_lack, self._shortage_of(self.shape)
        if shortage not in least_lacks:
            sites = self._all_nodes
            lacks = [s.lack for s in sites if s.summary and s.lack.fits(s.summary.largest)]
            least_lacks[shortage] = least(lacks) if lacks else None
        return least_lacks[shortage]

    def _nodes(self, shape: GroupShape) -> Iterator[Site]:
        state, need, room = self.state, shape.total, self.room
        for node in state.cluster.open_nodes():
            if not need.fits(node.total) or not has_labels(node, shape):
                continue
            summary = summary_of(state, node)
            lack = need.beyond(room.free_on(node.node_id))
            bound = summary.bound(lack, node.node_id, self._now)
            if bound is not None:
                yield Site(bound=bound, node=node, lack=lack, summary=summary)

    def _by_tier(self, sites: Iterable[Site]) -> Iterator[Site]:
        """Those of these nodes that the candidates could free, with bounds by tier instead of priority."""
        tiers = self.agents.tiers
        for site in sites:
            least_tier = _least_tier(site, tiers)
            if least_tier is not None:
                yield msgspec.structs.replace(site, bound=(least_tier, *site.bound[1:]))

    def all(self) -> Iterator[Site]:
        """Every site, in no order."""
        demand = self.demand
        if self.agents.may_preempt_groups and demand.short_quota:
            yield from self._with_groups()
        if not demand.needs_place or self.scenario.initial is not None:
            yield Site()
        elif self.one_node:
            yield from self.nodes
        elif self.shape is not None:
            if self.shape.topology is not None:
                yield from self._domains(self.shape, self.shape.topology)
            yield Site(everywhere=True)

    def _domains(self, shape: GroupShape, topology: Topology) -> Iterator[Site]:
        """The domains that could hold the shape if nothing ran there, those that lack least first."""
        nodes, need = self.state.cluster.nodes, shape.total
        level = topology.limit if topology.required else topology.target
        domains = self.state.cluster.domains.of(topology).at(level)
        able = (
            domain
            for domain in sorted(domains, key=lambda domain: domain.order, reverse=True)
            if need.fits(sum_of(nodes[node_id].total for node_id in domain.node_ids))
        )
        for domain in islice(able, _DOMAINS):
            yield Site(node_ids=tuple(domain.node_ids))

    def _with_groups(self) -> Iterator[Site]:
        """Of each priority the first victim whose group can be taken."""
        seen = set()
        for victim in self.agents.in_order(self._of_own_pool):
            if victim.preempted_group is not None and victim.tier not in seen:
                seen.add(victim.tier)
                yield Site(bound=(victim.tier, 1, 0.0, ""), preempts_group_of=victim)

    def _of_own_pool(self, task_class: TaskClass) -> bool:
        return task_class.has_tasks() and task_class.pool_name == self.demand.pool_name

    def candidates(self, site: Site) -> list[VictimAgent]:
        """Those of the site in order; before them as many as must leave for the pool's number of groups,
        those of the site before others.
        """
        if site.preempts_group_of is not None:
            return [site.preempts_group_of]
        nodes = list(self.state.cluster.open_nodes()) if site.everywhere else []
        nodes += [self.state.cluster.nodes[node_id] for node_id in sorted(site.node_ids)]
        if site.node is not None:
            nodes = [site.node]
        names = {name: None for node in nodes for name, _ in agents_on(self.state, node)}
        here = self._victims(names)
        too_many = max(0, self.scenario.too_many_groups)
        with_own_group = [victim for victim in here if self.has_own_group(victim)]
        if len(with_own_group) < too_many:
            with_own_group += [
                victim for victim in self._with_own_groups if victim.name not in names
            ]
        first = with_own_group[:too_many]
        chosen = {victim.name for victim in first}
        return [*first, *(victim for victim in here if victim.name not in chosen)]

    @cached_property
    def _with_own_groups(self) -> list[VictimAgent]:
        """The candidates in dynamic groups of the incoming task's pool, in order."""
        groups = self.state.groups
        members = (groups.by_id[g].agent for g in groups.of_pool.get(self.demand.pool_name, ()))
        return list(filter(self.has_own_group, self._victims(name for name in members if name)))

    def has_own_group(self, victim: VictimAgent) -> bool:
        """Whether a dynamic group of the incoming task's pool is removed with this victim."""
        group = victim.group
        return group is not None and group.dynamic and group.pool_name == self.demand.pool_name

    def _victims(self, names: Iterable[str]) -> list[VictimAgent]:
        """Those of these agents that may be evicted, in order."""
        victims = (self.agents.victim_of(name) for name in names)
        return sorted((victim for victim in victims if victim is not None), key=order_of)


def _least_tier(site: Site, tiers: Mapping[TaskClass, float]) -> float | None:
    """The least tier up to which the victims on a node free what is lacking; None: they never do."""
    if site.summary is None:
        return None
    amounts_by_tier = [
        (max(tiers[task_class] for task_class in classes), amount)
        for classes, amount in site.summary.by_classes.items()
        if classes <= tiers.keys()
    ]
    freed = NOTHING
    for tier, amount in sorted(amounts_by_tier, key=lambda entry: entry[0]):
        freed = freed + amount
        if site.lack.fits(freed):
            return tier
    return None
