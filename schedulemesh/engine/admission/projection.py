"""When quota and room become free if the running tasks end when they are expected to (``ends``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import merge
from itertools import islice
from operator import itemgetter

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources, least, sum_of
from schedulemesh.domain.topology import Topology
from schedulemesh.engine.admission.ends import Ends
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import (
    Assignment,
    GroupRequest,
    excess,
    find_assignment,
    suits,
)
from schedulemesh.engine.placement.leaving import Leaving, all_leaving, release_all, unclaimed_quota
from schedulemesh.engine.placement.minimise import release_until
from schedulemesh.engine.placement.reserved_room import kept_keys, most_free
from schedulemesh.engine.placement.scenario import (
    Demand,
    Removal,
    Scenario,
    bundle_allocations,
    own_groups,
)
from schedulemesh.engine.state.agents import Waiting
from schedulemesh.engine.state.groups import GroupPhase, bundle_of, is_bundle
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Allocation, Node, has_labels, held_by
from schedulemesh.engine.state.queued_tasks import Reservation
from schedulemesh.engine.state.tasks import TaskClass

#: Nodes on which a place is sought, those with the most free resources; for a group at least so many per
#: bundle.
_NODES = 64
_NODES_PER_BUNDLE = 2
#: Running tasks of a pool that are looked at, those that end first.
_ENDS = 10_000

#: When something ends on a node, and the key of its allocation.
_EndOnNode = tuple[float, str]
_end_of = itemgetter(0)


# quota


def classes_by_pool(state: MeshState) -> dict[str, list[TaskClass]]:
    """The classes of running tasks whose agents hold quota of each pool."""
    classes: dict[str, list[TaskClass]] = {}
    for task_class in state.running.occupied:
        if task_class.resources != NOTHING:
            for pool_name in task_class.payers or (task_class.pool_name,):
                classes.setdefault(pool_name, []).append(task_class)
    return classes


def quota_free_at(
    state: MeshState,
    pool_name: str,
    need: Resources,
    classes: list[TaskClass],
    ends: Ends,
    taken: Resources = NOTHING,
) -> float | None:
    """When so much of a pool's quota is free, if so much is taken of it now; None: nobody knows. ``classes``:
    those of the tasks whose agents hold some of it.
    """
    free = state.ledger.accounts[pool_name].free - taken
    if need.fits(free):
        return ends.now
    free = free + unclaimed_quota(state, pool_name)
    if need.fits(free):
        return ends.now
    for end, freed in _quota_ends(state, pool_name, classes, ends):
        free = free + freed
        if need.fits(free):
            return end
    return None


def _quota_ends(
    state: MeshState, pool_name: str, classes: list[TaskClass], ends: Ends
) -> Iterator[tuple[float, Resources]]:
    """When agents free quota of a pool, the first first, and how much."""
    if ends.none_known:
        return
    streams = [ends.of_class(task_class) for task_class in classes]
    seen: set[str] = set()
    for number, (end, task_id) in enumerate(merge(ends.of_starting(), *streams)):
        if number >= _ENDS:
            return
        name = state.running.by_id[task_id].agent_name
        if name in seen or ends.of_agent(name) != end:
            continue
        seen.add(name)
        agent = state.agents[name]
        claim = (*agent.shares, *agent.promised)
        yield end, sum_of(share.amount for share in claim if share.pool_name == pool_name)


# room on nodes


class Projection:
    """When there is a place for tasks, at one time; keeps what it has found out about nodes. What is leaving
    counts as gone already, apart from what others have claimed of it.
    """

    def __init__(self, state: MeshState, ends: Ends) -> None:
        #: When running tasks end.
        self.ends = ends
        self._state = state
        self._now = ends.now
        self._on_nodes: dict[str, list[_EndOnNode]] = {}
        self._free: dict[str, Resources] = {}

    def place(
        self, shape: GroupShape, group_request: GroupRequest | None, prefer: tuple[str, ...] = ()
    ) -> Reservation:
        """When and where there is a place for a task, in a placement group where ``asked`` says what it asks
        of these, else on a node for this shape. Where no time is known, the nodes that lack least; of equal
        ones those of ``prefer``.
        """
        if group_request is None:
            return self._on_node(shape, prefer)
        assignment = find_assignment(self._state, group_request, waits=True)
        if isinstance(assignment, Assignment):
            if assignment.group is not None:
                return Reservation(at=self._now, group_id=assignment.group.group_id)
            if assignment.placement is not None:
                return Reservation(at=self._now, node_ids=assignment.placement.node_ids)
        nodes = list(self._nodes_for(group_request.shape))
        start = self._in_group(group_request, nodes)
        if start is None and group_request.spec.dynamic and excess(self._state, group_request) <= 0:
            start = self._on_emptiest(group_request.shape, nodes, prefer)
        return start or Reservation()

    def free_by(self, node: Node, until: float) -> Resources:
        """What is free on a node at a time."""
        free = self._free_soon(node)
        for end, key in self.ends_on(node):
            if end > until:
                break
            free = free + self._freed(node, key)
        return free

    def is_being_left(self, node_id: str) -> bool:
        """Whether something is leaving this node."""
        return node_id in self._leaving

    def _free_soon(self, node: Node) -> Resources:
        """What is free on a node once what is leaving is gone, apart from what is claimed of it."""
        free = self._free.get(node.node_id)
        if free is None:
            promised = map(node.allocations.__getitem__, node.promised)
            free = node.free - Resources(gpu=sum(map(_gpu_lack, promised)))
            for item in self._leaving.get(node.node_id, ()):
                keys = (key for node_id, key in item.allocations if node_id == node.node_id)
                allocations = (node.allocations[key] for key in keys if key in node.allocations)
                free = free + sum_of(map(held_by, allocations))
                free = free - sum_of(
                    lack for node_id, lack in item.claimed if node_id == node.node_id
                )
            self._free[node.node_id] = free
        return free

    @cached_property
    def _leaving(self) -> dict[str, list[Leaving]]:
        """What is leaving each node."""
        leaving: dict[str, list[Leaving]] = {}
        for item in all_leaving(self._state):
            for node_id in dict.fromkeys(node_id for node_id, _ in item.allocations):
                leaving.setdefault(node_id, []).append(item)
        return leaving

    def _room(self, leaving: Iterable[Leaving]) -> Room:
        """The nodes when this is gone."""
        room = Room(self._state.cluster, waits=True)
        release_all(room, leaving)
        return room

    def ends_on(self, node: Node) -> list[_EndOnNode]:
        """What ends on a node, the first first; placement groups that nobody uses do now."""
        if self.nothing_ends:
            return []
        ends = self._on_nodes.get(node.node_id)
        if ends is None:
            ends = [
                (end, key) for key in node.allocations if (end := self._end_of(key)) is not None
            ]
            ends.sort(key=_end_of)
            self._on_nodes[node.node_id] = ends
        return ends

    @cached_property
    def nothing_ends(self) -> bool:
        """Whether surely nothing ends on any node at a known time; what is leaving counts as gone."""
        return self.ends.none_known and not self._state.groups.idle()

    def _freed(self, node: Node, key: str) -> Resources:
        """What an allocation frees when it ends: all that is claimed for an agent that waits for it."""
        if is_bundle(key):
            group_id, number = bundle_of(key)
            group = self._state.groups.by_id[group_id]
            waits, need = group.phase is GroupPhase.PLANNED, group.shape.bundles[number]
        else:
            agent = self._state.agents[key]
            waits, need = isinstance(agent.phase, Waiting), agent.spec.resources
        return need if waits else held_by(node.allocations[key])

    def _end_of(self, key: str) -> float | None:
        """When an allocation ends."""
        if not is_bundle(key):
            return self.ends.of_agent(key)
        return self.ends.of_group(self._state.groups.by_id[bundle_of(key)[0]])

    # without a placement group

    def _on_node(self, shape: GroupShape, prefer: tuple[str, ...]) -> Reservation:
        """The node with room first, and when; where no time is known, the one that lacks least."""
        best: tuple[float, str] | None = None
        closest: tuple[float, bool, str] | None = None
        need = shape.bundles[0]
        for node in self._nodes_for(shape):
            if closest is not None and self._lacks_more(need, node, closest[0]):
                break
            at = self._first_fit(node, shape, None if best is None else best[0])
            if at is not None:
                best = min(best or (at, node.node_id), (at, node.node_id))
            if best is None:
                lacks = (self._shortage(need, node), node.node_id not in prefer, node.node_id)
                closest = min(closest or lacks, lacks)
        if best is not None:
            return Reservation(at=best[0], node_ids=(best[1],))
        return Reservation(node_ids=() if closest is None else (closest[2],))

    def _lacks_more(self, need: Resources, node: Node, shortage: float) -> bool:
        """Whether this node, and all that have fewer free GPUs, surely lack more than this, now and later."""
        if not need.gpu or not self.nothing_ends or self._leaving:
            return False
        return (need.gpu - node.free.gpu) / need.gpu > shortage

    def _first_fit(self, node: Node, shape: GroupShape, before: float | None) -> float | None:
        """When a node has room for all bundles; None: nobody knows, or not before this time."""
        free, need = self._free_soon(node), shape.total
        if not need.fits(free) and not self.ends_on(node):
            return None
        room = self._room(self._leaving.get(node.node_id, ()))
        if need.fits(free) and room.has_room_on(node.node_id, shape):
            return self._now
        for end, key in self.ends_on(node):
            if before is not None and end > before:
                return None
            free = free + self._freed(node, key)
            room.release(node.node_id, key)
            if need.fits(free) and room.has_room_on(node.node_id, shape):
                return end
        return None

    # in a placement group

    def _nodes_for(self, shape: GroupShape) -> Iterator[Node]:
        """The nodes with the most free resources on which a bundle could be, by descending free GPU."""
        smallest = least(shape.bundles)
        count = max(_NODES, _NODES_PER_BUNDLE * len(shape.bundles))
        cluster = self._state.cluster
        passes_many = bool(shape.node_labels) or self._state.groups.reserved_groups > 0
        able = cluster.emptiest(len(cluster.nodes) if passes_many else count)
        if shape.topology is not None and shape.topology.required:
            able = self._in_domains(shape.topology, count)
        able = (n for n in able if self._may_be_on(n, smallest, shape))
        is_cut = passes_many and (shape.topology is None or not shape.topology.required)
        nodes = {n.node_id: n for n in (islice(able, count) if is_cut else able)}
        for node_id in self._leaving:
            node = cluster.nodes.get(node_id)
            if node and not node.cordoned and self._may_be_on(node, smallest, shape):
                nodes[node_id] = node
        return iter(nodes.values())

    def _in_domains(self, topology: Topology, count: int) -> Iterator[Node]:
        """The nodes of the domains with the most free, each of which could be the one that a task requires;
        together at least so many nodes.
        """
        cluster = self._state.cluster
        domains = cluster.domains.of(topology).at(topology.limit)
        for domain in sorted(domains, key=lambda domain: domain.order, reverse=True):
            if count <= 0:
                return
            yield from map(cluster.nodes.__getitem__, sorted(domain.node_ids))
            count -= len(domain.node_ids)

    def _may_be_on(self, node: Node, smallest: Resources, shape: GroupShape) -> bool:
        """Whether a bundle of this shape, ``smallest`` at least, could be on a node if nothing ran."""
        if not smallest.fits(node.total) or not has_labels(node, shape):
            return False
        return smallest.fits(most_free(self._state, node))

    def _in_group(self, group_request: GroupRequest, nodes: list[Node]) -> Reservation | None:
        """When there is a group that it may have, or room for a new one; None: nobody knows."""
        scenario = self._scenario(group_request, nodes)
        ending = sorted(self._ending(group_request, nodes), key=_when)
        taken = release_until(scenario, [removal for _, removal in ending], scenario.has_place)
        if taken is None:
            return None
        at = ending[len(taken) - 1][0] if taken else self._now
        group = next((one.preempted_group for one in taken if one.preempted_group), None)
        if group is not None:
            return Reservation(at=at, group_id=group.group_id)
        placement = scenario.placement()
        return None if placement is None else Reservation(at=at, node_ids=placement.node_ids)

    def _scenario(self, group_request: GroupRequest, nodes: Iterable[Node]) -> Scenario:
        may_create = group_request.spec.dynamic and group_request.spec.max_dynamic >= 1
        leaving = all_leaving(self._state)
        groups = sum(own_groups(item, group_request.pool_name) for item in leaving)
        demand = Demand(
            shape=group_request.shape if may_create else None,
            pool_name=group_request.pool_name,
            too_many_groups=excess(self._state, group_request) - groups,
            only_nodes=tuple(node.node_id for node in nodes),
        )
        return Scenario(self._room(leaving), demand)

    def _ending(
        self, group_request: GroupRequest, nodes: Iterable[Node]
    ) -> Iterator[tuple[float, Removal]]:
        """What ends on these nodes, and agents in groups that it may have."""
        state, seen = self._state, set()
        for node in nodes:
            for end, key in self.ends_on(node):
                name = bundle_of(key)[0] if is_bundle(key) else key
                if name not in seen:
                    seen.add(name)
                    yield end, _removal(state, group_request, key, node)
        for group_id in state.groups.of_pool.get(group_request.pool_name, ()):
            group = state.groups.by_id[group_id]
            if group_id in seen or group.agent is None or not suits(state, group_request, group):
                continue
            stays = group.promised_to is None and group.leaves_for is None
            ends_at = self.ends.of_agent(group.agent) if stays else None
            if ends_at is not None:
                yield ends_at, Removal(name=group_id, preempted_group=group)

    def _on_emptiest(
        self, shape: GroupShape, nodes: list[Node], prefer: tuple[str, ...]
    ) -> Reservation | None:
        """The nodes that lack least, if all agents there ended; None: they could not hold it even so."""
        smallest = least(shape.bundles)
        order = sorted(
            nodes,
            key=lambda n: (n.node_id not in prefer, self._shortage(smallest, n), n.node_id),
        )
        removals = [
            Removal(name=n.node_id, allocations=tuple(self._removable_on(n))) for n in order
        ]
        demand = Demand(shape=shape, only_nodes=tuple(node.node_id for node in nodes))
        scenario = Scenario(Room(self._state.cluster, waits=True), demand)
        taken = release_until(scenario, removals, scenario.has_place)
        placement = None if taken is None else scenario.placement()
        return None if placement is None else Reservation(node_ids=placement.node_ids)

    def _removable_on(self, node: Node) -> Iterator[tuple[str, str]]:
        """The allocations on a node but for those of placement groups that stay."""
        staying = kept_keys(self._state, node)
        return ((node.node_id, key) for key in node.allocations if key not in staying)

    def _shortage(self, need: Resources, node: Node) -> float:
        """The largest part of the CPU, memory or GPU needed that is not free on the node: 0.0 to 1.0."""
        free, most = self._free_soon(node), 0.0
        for needed, has in ((need.gpu, free.gpu), (need.cpu, free.cpu), (need.memory, free.memory)):
            if needed > has and needed:
                most = max(most, (needed - has) / needed)
        return most


def _gpu_lack(allocation: Allocation) -> int:
    """The GPU units that a promised allocation does not hold yet."""
    return allocation.wants - held_by(allocation).gpu


def _removal(state: MeshState, group_request: GroupRequest, key: str, node: Node) -> Removal:
    """What becomes free when an allocation ends."""
    if not is_bundle(key):
        return Removal(name=key, allocations=((node.node_id, key),))
    group = state.groups.by_id[bundle_of(key)[0]]
    may_have = group.agent is not None and suits(state, group_request, group)
    return Removal(
        name=group.group_id,
        allocations=bundle_allocations(group),
        group=group,
        preempted_group=group if may_have else None,
    )


def _when(entry: tuple[float, Removal]) -> tuple[float, str]:
    return (entry[0], entry[1].name)
