"""The victim search: which agents are evicted so that an incoming task can start; none where that is in vain.

An incoming task may lack quota, and a place to run: room on one node, room for each bundle of a placement
group, or the group of a victim, which stays as it is. The search is the same for all of them:

1. One victim that is enough by itself, the first in the order of victims (``candidates``). Where the order
   does not tell two apart, one whose group is taken, because then no group has to be created. Where this one
   frees more than the task needs, others with the same effective difference of priority come before it that
   leave less idle: for one GPU a task of one GPU goes, and not a gang of 16.
2. If there is none, several. They are sought site by site. A site is where a place is to be made: one node;
   all nodes together, for bundles that may be spread, and before them domains of the topology; the group of a
   victim; or no node at all, where only quota, or the pool's number of groups, is short. At each site

   a. as many victims with groups of the pool as there are groups too many,
   b. the candidates of the site in order until there is a place,
   c. any candidates in order that free a kind of quota still short, until quota suffices,
   d. then everyone who turns out not to be needed is given back, last in the order first.

   Of the sites that site is taken whose victims have the lowest top priority (in a reclaim: belong to the
   pools with the highest shares), then the fewest victims, then the least lost work, then the first node id.
   Sites are visited by a lower bound of this, so that those which cannot win any more are not worked out.
3. Groups that nobody uses cost nobody's work: they count as removed while victims are sought. Of them only
   those that are needed are removed in the end, the longest idle first. So does what is leaving anyway and
   nobody has claimed (``placement.leaving``).

So no single victim can be left out, and nobody is evicted where the task could not start even so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING, Resources, least, sum_of
from schedulemesh.engine.messages.facts import Share
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import without_idle
from schedulemesh.engine.placement.leaving import Leaving, gone, names_of
from schedulemesh.engine.placement.minimise import minimise, release_until
from schedulemesh.engine.placement.placers import BundlePlacement
from schedulemesh.engine.placement.scenario import Demand, own_groups
from schedulemesh.engine.preemption.candidates import idle_beyond
from schedulemesh.engine.preemption.node_summary import (
    Place,
    place_of,
)
from schedulemesh.engine.preemption.sites import KnownNodes, Site, Sites
from schedulemesh.engine.preemption.victims import (
    VictimAgent,
    VictimAgents,
    evicted_tasks,
    order_of,
)
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import has_labels
from schedulemesh.engine.state.quota import Payment
from schedulemesh.engine.state.tasks import TaskClass

#: So many single victims are looked at before the nodes are.
_FIRST_FEW = 4
#: Among victims of so many sizes one is sought that leaves less idle than the first one, the smallest first.
_SIZES = 8


class EvictionPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who is evicted, and where the incoming task runs then."""

    victims: tuple[VictimAgent, ...]
    #: Where it, or a new group for it, has room; None: its place is known already, or it gets a group.
    placement: BundlePlacement | None = None
    #: The group of a victim, which the incoming task takes as it is.
    preempted_group: Group | None = None
    #: Groups that are removed: those of victims, and those that nobody uses.
    removed: tuple[Group, ...] = ()
    #: How the incoming task is paid then; None: as it would be without an eviction.
    payment: Payment | None = None
    #: The quota that it gets from its victims and what is leaving, by the pool that it belongs to.
    promised: tuple[Share, ...] = ()
    #: What is leaving anyway and makes room for it, and what of that gives it quota.
    leaving: tuple[Leaving, ...] = ()
    paying: tuple[Leaving, ...] = ()
    #: The part of ``promised`` that these give.
    claimed: tuple[Share, ...] = ()
    #: The shares that claims hold from now on, where victims take over loans of others; see ``exchange``.
    exchanged: tuple[tuple[str, tuple[Share, ...]], ...] = ()
    #: The agents that do not run yet whose claims are revoked before; then all else is sought again.
    revoked: tuple[str, ...] = ()
    #: Whether an owner claims what is leaving where it would evict borrowers otherwise.
    spares_borrowers: bool = False

    @property
    def only_takes_back(self) -> bool:
        """Whether an owner gets its quota back by it, and nobody is evicted by the rules."""
        victims = evicted_tasks(self.victims)
        return bool(victims or self.revoked) and all(
            victim.reason is PreemptionReason.RECLAIM for victim in victims
        )

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The agents that are leaving anyway and that it waits for."""
        return tuple(dict.fromkeys((*names_of(self.leaving), *names_of(self.paying))))


def search(
    state: MeshState,
    demand: Demand,
    agents: VictimAgents,
    now: float,
    known_nodes: KnownNodes | None = None,
    leaving: tuple[Leaving, ...] = (),
) -> EvictionPlan | None:
    """The plan by which the demand is met; None: no eviction that is allowed would meet it.

    ``known_nodes``: what searches for the same task with other priorities have learned. ``leaving``: what is
    leaving anyway; the demand's shortage does not count what it gets of that, apart from its place.
    """
    return _Search(Sites(state, demand, agents, now, known_nodes, leaving)).plan()


def place_without(
    state: MeshState,
    demand: Demand,
    room: Room,
    leaving: Iterable[Leaving],
    too_many: int,
) -> tuple[BundlePlacement, tuple[Group, ...], tuple[Leaving, ...]] | None:
    """The place of what is demanded once no more than necessary of what is leaving and of the groups that
    nobody uses is gone, these groups, and what of the leaving it needs; None: there is none.
    """
    if demand.shape is None:
        return None
    idle, items = state.groups.idle(), [item for item in leaving if item.allocations]
    pool_name = demand.pool_name
    if not items:
        placement_and_groups = without_idle(room, demand.shape, idle, pool_name, too_many)
        return None if placement_and_groups is None else (*placement_and_groups, ())
    if too_many <= 0 and (node_ids := _nodes_without(room, demand.shape, items)):
        items = [i for i in items if any(node_id in node_ids for node_id, _ in i.allocations)]
    removable: Sequence[Leaving | Group] = [*items, *idle]
    placement_and_removed = without_idle(room, demand.shape, removable, pool_name, too_many)
    if placement_and_removed is None:
        return None
    placement, removed = placement_and_removed
    groups = tuple(item for item in removed if isinstance(item, Group))
    return placement, groups, tuple(item for item in removed if isinstance(item, Leaving))


def _nodes_without(room: Room, shape: GroupShape, leaving: Sequence[Leaving]) -> tuple[str, ...]:
    """The nodes of a placement once all of this is gone; empty: there is none even then. What is leaving on
    the other nodes need not be tried one by one.
    """
    with gone(room, leaving):
        placement = room.placement(shape)
    return () if placement is None else placement.node_ids


class _Search:
    """One search."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._state, self._demand, self._agents = sites.state, sites.demand, sites.agents
        self._shape, self._one_node, self._leaving = sites.shape, sites.one_node, sites.leaving
        #: Single victims that were looked at.
        self._tried = 0
        #: What single victims do that were not enough.
        self._in_vain: set[frozenset[tuple[object, ...]]] = set()

    def plan(self) -> EvictionPlan | None:
        """See ``search``."""
        single = self._least_idle(self._single(self._class_may_suffice))
        if single is not None:
            return self._plan_of((single,), "")
        several = self._several()
        return None if several is None else self._plan_of(*several)

    # one victim

    def _least_idle(self, first: VictimAgent | None) -> VictimAgent | None:
        """Of the single victims that are enough and have the same effective difference of priority as the
        first one, the first of those that leave least idle.
        """
        if first is None:
            return None
        need = self._demand.amount
        idle = first.idle_beyond(need)
        if not idle:
            return first
        by_idle: dict[float, set[TaskClass]] = {}
        for task_class in self._agents.alike(first):
            less = idle_beyond(task_class.resources, need)
            if less < idle:
                by_idle.setdefault(less, set()).add(task_class)
        for less in sorted(by_idle)[:_SIZES]:
            victim = self._single(partial(self._may_suffice_of, by_idle[less]))
            if victim is not None and victim.idle_beyond(need) < idle:
                return victim
        return first

    def _single(self, keep: Callable[[TaskClass], bool]) -> VictimAgent | None:
        """The first victim that is enough of these classes; of equal ones one whose group can be taken."""
        first: VictimAgent | None = None
        for victim in self._agents.in_order(keep):
            self._tried += 1
            if first is not None and victim.order[:4] != first.order[:4]:
                break
            if not self._frees_quota(victim):
                continue
            if victim.preempted_group is not None:
                return victim
            if first is None and self._suffices(victim):
                if not self._agents.may_preempt_groups:
                    return victim
                first = victim
        return first

    def _may_suffice_of(self, classes: Collection[TaskClass], task_class: TaskClass) -> bool:
        return task_class in classes and self._class_may_suffice(task_class)

    def _frees_quota(self, victim: VictimAgent) -> bool:
        """Whether this victim alone frees all the quota that is short."""
        short, caps = self._demand.short_quota, self._demand.caps
        if short.fits(victim.quota):
            return True
        if caps is None:
            return False
        remaining = short.beyond(victim.quota)
        freed: dict[str, Resources] = {}
        for lender, amount in victim.limited:
            freed[lender] = freed.get(lender, NOTHING) + amount
        return remaining == caps.usable(remaining, freed)

    def _class_may_suffice(self, task_class: TaskClass) -> bool:
        """Whether one agent with tasks of this class could free all that is short."""
        frees = task_class.resources
        if not task_class.count or not self._demand.short_quota.fits(task_class.quota):
            return False
        if not self._demand.needs_place:
            return True
        if self._agents.may_preempt_groups and task_class.pool_name == self._demand.pool_name:
            return True
        if self._shape is None:
            return False
        if not self._agents.by_priority:
            # One of the first borrowers is nearly always enough, so the nodes are looked at only if not.
            return self._tried < _FIRST_FEW or self._least_short.fits(frees)
        least_lack = self._sites.least_lack
        return least_lack is not None and least_lack.fits(frees)

    @cached_property
    def _least_short(self) -> Resources:
        """What the node lacks that lacks least, whoever runs there."""
        if self._sites.scenario.initial is not None or not self._one_node or self._shape is None:
            return NOTHING
        need, room = self._shape.total, self._sites.room
        nodes = self._state.cluster.open_nodes()
        return least(need.beyond(room.free_on(node.node_id)) for node in nodes)

    def _suffices(self, victim: VictimAgent) -> bool:
        """Whether this victim alone, which frees all the quota that is short, is enough."""
        if not self._demand.needs_place:
            return True
        if self._shape is None or not self._may_make_room(victim):
            return False
        effect = self._effect(victim)
        if effect in self._in_vain:
            return False
        self._sites.scenario.release(victim)
        enough = self._sites.scenario.enough()
        self._sites.scenario.take_back(victim)
        if not enough:
            self._in_vain.add(effect)
        return enough

    def _may_make_room(self, victim: VictimAgent) -> bool:
        """Whether the amounts that it frees could be enough, whatever the devices."""
        if self._sites.scenario.initial is not None:
            return True
        nodes = self._state.cluster.nodes
        node_ids = {node_id for node_id, _ in victim.allocations} & nodes.keys()
        if self._one_node and self._shape is not None:
            room = self._sites.room
            return any(
                has_labels(nodes[n], self._shape)
                and self._total.beyond(room.free_on(n)).fits(victim.room)
                for n in node_ids
            )
        return self._lack_everywhere.fits(
            victim.room + sum_of(map(self._sites.room.free_on, node_ids))
        )

    @cached_property
    def _total(self) -> Resources:
        """What all bundles ask for together."""
        return NOTHING if self._shape is None else self._shape.total

    @cached_property
    def _lack_everywhere(self) -> Resources:
        """What bundles on several nodes lack of all that is free on nodes which could take the least one."""
        if self._shape is None:
            return NOTHING
        smallest = least(self._shape.bundles)
        free = (self._sites.room.free_on(node.node_id) for node in self._state.cluster.open_nodes())
        return self._shape.total.beyond(sum_of(room for room in free if smallest.fits(room)))

    def _effect(self, victim: VictimAgent) -> frozenset[tuple[object, ...]]:
        """What its removal changes: victims of the same effect are enough, or none of them is."""
        nodes, freed = self._state.cluster.nodes, []
        for node_id, key in victim.allocations:
            allocation = nodes[node_id].allocations.get(key) if node_id in nodes else None
            if allocation is not None:
                promised = key in nodes[node_id].promised
                freed.append(
                    (node_id, allocation.held, allocation.devices, allocation.reported, promised)
                )
        own_pool = "" if victim.group is None else victim.group.pool_name
        return frozenset([*freed, (own_pool, victim.quota, victim.limited)])

    # several victims

    def _several(self) -> tuple[tuple[VictimAgent, ...], str] | None:
        """The victims of the best site, and its node; empty: it is not a single node."""
        best: tuple[Place, tuple[VictimAgent, ...]] | None = None
        for site in sorted(self._sites.all(), key=_bound_of):
            if site.bound[0] > self._top or (best is not None and best[0] <= site.bound):
                break
            victims = self._victims_at(site, None if best is None else best[0])
            if victims is None:
                continue
            place = place_of(victims, "" if site.node is None else site.node.node_id)
            if best is None or place < best[0]:
                best = (place, victims)
            if self._sites.known.any_site:
                break
        return None if best is None else (best[1], best[0][-1])

    def _victims_at(self, site: Site, best: Place | None) -> tuple[VictimAgent, ...] | None:
        """The victims for this site; None: not even all that may be evicted are enough, or others that were
        found already are surely better.
        """
        if site.summary is not None and not site.lack.fits(site.summary.freed_by(self._allowed)):
            return None
        scenario = self._sites.scenario
        # What would make room on another node is that node's site.
        scenario.reset(None if site.node is None else site.node.node_id)
        candidates = self._sites.candidates(site)
        if site.node is None or self._shape is None:
            taken = release_until(scenario, candidates, scenario.has_place)
        else:
            taken = self._fill_node(site.node.node_id, self._shape, candidates)
        if taken is None or (best and taken and taken[-1].tier > best[0]):
            # The last one is needed: without it there was no place.
            return None
        taken += self._fill_quota()
        if scenario.short_quota:
            return None
        taken.sort(key=order_of, reverse=True)
        return tuple(reversed(minimise(scenario, taken, scenario.enough, scenario.kind)))

    def _fill_node(
        self, node_id: str, shape: GroupShape, candidates: Iterable[VictimAgent]
    ) -> list[VictimAgent] | None:
        """Release candidates in order until there is a place, passing over those that free nothing
        still short on the node; None: there is none even without all of them.
        """
        scenario, taken = self._sites.scenario, []
        for victim in candidates:
            lack, devices = self._sites.room.short_on(node_id, shape)
            too_many = scenario.too_many_groups > 0
            if not lack and not devices and not too_many:
                break
            limit = too_many and self._sites.has_own_group(victim)
            if limit or victim.room.helps(lack) or (devices and victim.room.gpu):
                scenario.release(victim)
                taken.append(victim)
        return taken if scenario.has_place() else None

    @cached_property
    def _top(self) -> float:
        """No victim has a higher tier than this."""
        if not self._agents.by_priority:
            return max(self._agents.tiers.values(), default=float("-inf"))
        return max((c.priority for c in self._agents.allowed), default=float("-inf"))

    @cached_property
    def _allowed(self) -> frozenset[TaskClass]:
        return frozenset(self._agents.allowed)

    def _fill_quota(self) -> list[VictimAgent]:
        """Release candidates in order until quota suffices, but none that frees nothing still short."""
        scenario, taken = self._sites.scenario, []

        def helps(task_class: TaskClass) -> bool:
            return task_class.count > 0 and task_class.quota.helps(scenario.short_quota)

        if not scenario.short_quota:
            return []
        for victim in self._agents.in_order(helps):
            if not scenario.short_quota:
                break
            frees = sum_of((victim.quota, *(amount for _, amount in victim.limited)))
            if frees.helps(scenario.short_quota) and not scenario.is_released(victim.name):
                scenario.release(victim)
                taken.append(victim)
        return taken

    # the plan

    def _plan_of(self, victims: tuple[VictimAgent, ...], node_id: str) -> EvictionPlan | None:
        """With the place that these victims leave, on this node if there is one there, and with those of the
        idle groups that must be removed.
        """
        groups = (victim.preempted_group for victim in victims)
        preempted_group = next((group for group in groups if group is not None), None)
        if not self._demand.needs_place or self._shape is None or preempted_group is not None:
            return EvictionPlan(victims=victims, preempted_group=preempted_group)
        room = Room(self._state.cluster, waits=True)
        for victim in victims:
            for victim_node, key in victim.allocations:
                room.release(victim_node, key)
        removed = [victim.group for victim in victims if victim.group is not None]
        pool_name = self._demand.pool_name
        own_count = sum(group.dynamic and group.pool_name == pool_name for group in removed)
        too_many = self._demand.too_many_groups - own_count
        too_many += sum(own_groups(item, pool_name) for item in self._leaving)
        on_node = room.placement(self._shape, [node_id]) if node_id and too_many <= 0 else None
        if on_node is not None:
            return EvictionPlan(victims=victims, placement=on_node, removed=tuple(removed))
        place = place_without(self._state, self._demand, room, self._leaving, too_many)
        if place is None:
            return None
        placement, unused, leaving = place
        removed += unused
        return EvictionPlan(
            victims=victims, placement=placement, removed=tuple(removed), leaving=leaving
        )


def _bound_of(site: Site) -> Place:
    return site.bound
