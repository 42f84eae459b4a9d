"""Placement with groups: whether an incoming agent would start without some others, by exhaustive search.

It tries every assignment of bundles to nodes, and knows nothing of indexes, bounds and searches. Groups that
nobody uses count as removed, because they may always be removed for an incoming agent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple

from schedulemesh.domain.labels import Labels, matches
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload, JobPayload, Payload
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.domain.topology import Topology, with_levels
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import Waiting
from schedulemesh.engine.state.device_guarantees import is_sure
from schedulemesh.engine.state.devices import devices_for
from schedulemesh.engine.state.groups import Group, GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from tests.engine.builders import Mesh
from tests.engine.walk import (
    NOTHING_LEAVES,
    GroupRequest,
    InFlight,
    Leaver,
    Seats,
    as_resources,
    in_flight,
    least_idle,
    leavers,
)

#: Refusals for lack of room, quota or a group.
REFUSALS = (
    "preemption_failed",
    "insufficient_quota",
    "group_unplaceable",
    "cluster_out_of_resources",
)


class IncomingAgent(NamedTuple):
    """What is submitted."""

    pool_name: str
    bundles: tuple[Resources, ...]
    priority: float
    labels: Mapping[str, str]
    payload: Payload = SINGLE_PROCESS
    topology: Topology | None = None

    @property
    def gang(self) -> GangPayload | None:
        """How its members are placed; None: it is no gang."""
        return self.payload if isinstance(self.payload, GangPayload) else None

    @property
    def is_job(self) -> bool:
        """Whether it takes nothing of its claim itself."""
        return isinstance(self.payload, JobPayload)

    @property
    def need(self) -> Resources:
        """The sum of the bundles."""
        total = Resources()
        for bundle in self.bundles:
            total = total + bundle
        return total


def decision_is_right(mesh: Mesh, asked: TaskSubmitted, decided: object) -> None:
    """Hold the answer of a dry run against the walk: whoever leaves may leave, is enough and is needed, and
    several leave only where no one is enough; who is refused could not have started.
    """
    task = asked.task
    new = IncomingAgent(
        asked.agent.pool_name,
        asked.agent.bundles or (asked.agent.resources,),
        DEFAULT_PRIORITY if task is None else task.priority,
        asked.agent.labels if task is None else task.labels,
        asked.agent.payload,
        (
            with_levels(task.topology, mesh.state.policy.topology_levels)
            if task is not None and task.topology
            else None
        ),
    )
    group_request = GroupRequest(new.priority, new.pool_name, new.labels)
    leaving = NOTHING_LEAVES
    if asked.may_preempt:
        leaving = in_flight(mesh.state, group_request, quota=not asked.for_group)
    seats = GroupSeats(mesh.state, new, leaving)
    found = leavers(mesh.state, group_request, mesh.now)
    extras = [one for one in found if _is_extra(mesh.state, one.name)]
    if extras and asked.may_preempt and seats.starts([one.name for one in extras]):
        found = extras
    if isinstance(decided, Accepted):
        gone = {candidate.agent_name for candidate in decided.preempted}
        _nobody_leaves_in_vain(seats, asked, gone, found)
    elif isinstance(decided, Refused) and decided.reason in REFUSALS:
        _nobody_would_have_helped(seats, asked, decided, [one.name for one in found])


def _is_extra(state: MeshState, agent_name: str) -> bool:
    """Whether the agent is an extra member of an elastic gang, which is given up before anything else."""
    running = state.running
    return any(running.by_id[task_id].spec.extra_of for task_id in running.on_agent(agent_name))


def _nobody_leaves_in_vain(
    seats: GroupSeats, asked: TaskSubmitted, gone: set[str], found: list[Leaver]
) -> None:
    assert gone <= {one.name for one in found}
    assert seats.starts(gone), gone
    assert asked.may_preempt or not gone
    if asked.for_group and gone:
        assert len(gone) == 1
        assert seats.given(gone)
    if gone:
        assert not seats.starts(()), gone
    for name in gone:
        assert not seats.starts(gone - {name}), (gone, name)
    enough = seats.given if asked.for_group else seats.starts
    alone = [one for one in found if enough((one.name,))]
    if gone and alone:
        first = _first_alone(seats, alone, for_group=asked.for_group)
        assert gone == {first.name}, (gone, alone)


def _first_alone(seats: GroupSeats, alone: list[Leaver], *, for_group: bool) -> Leaver:
    """Of those who are enough the one with the highest score; of equals, where room is short as
    things are, one that has a group that can be taken.
    """
    spec, need = seats.spec, seats.incoming.need
    made = spec is None or (spec.dynamic and spec.max_dynamic >= 1 and not for_group)
    placed = GroupSeats(seats.state, seats.incoming).placed(()) or seats.given(())
    if not made or placed:
        need = as_resources(seats.seats.short)
    alone = least_idle(seats.state, alone, need)
    best = [one for one in alone if one.score == alone[0].score]
    if placed:
        return best[0]
    preempts_group_of = [one for one in best if seats.given((one.name,))]
    return (preempts_group_of or best)[0]


def _nobody_would_have_helped(
    seats: GroupSeats, asked: TaskSubmitted, refused: Refused, may_go: list[str]
) -> None:
    assert not seats.starts(())
    if asked.for_group:
        short = not seats.seats.quota(())
        assert (refused.reason == "insufficient_quota") == short or not seats.placed(may_go)
        assert short or not any(seats.given((name,)) for name in may_go)
    elif asked.may_preempt:
        assert not seats.starts(may_go), refused


class GroupSeats:
    """Whether one incoming agent would start."""

    def __init__(
        self, state: MeshState, incoming: IncomingAgent, leaving: InFlight = NOTHING_LEAVES
    ) -> None:
        #: ``leaving``: what counts as gone anyway.
        self.state = state
        self.leaving = leaving
        self.incoming = incoming
        self.spec: GroupsSpec | None = state.ledger.accounts[incoming.pool_name].spec.groups
        if self.spec is None and incoming.gang is not None:
            self.spec = GroupsSpec(max_dynamic=1_000, strategy="PACK")
        if incoming.is_job and (self.spec is not None or len(incoming.bundles) > 1):
            self.spec = GroupsSpec(max_dynamic=1_000, strategy="PACK")
        self.seats = Seats(state, incoming.pool_name, incoming.need, anywhere=True, leaving=leaving)

    def starts(self, gone: Collection[str]) -> bool:
        """Whether quota and a place to run are there once these agents are gone."""
        return self.seats.quota(gone) and self.placed(gone)

    def placed(self, gone: Collection[str]) -> bool:
        """Whether a place to run is there."""
        if self.spec is None:
            shape = GroupShape(bundles=(self.incoming.need,))
            return self._has_room(shape, gone)
        return self.given(gone) or self._made(self.spec, gone)

    def given(self, gone: Collection[str]) -> bool:
        """Whether a group that is there, or that is being made, is available to the incoming agent."""
        return any(self._may_have(group, gone) for group in self.state.groups.by_id.values())

    def _may_have(self, group: Group, gone: Collection[str]) -> bool:
        spec, new = self.spec, self.incoming
        if spec is None or group.pool_name != new.pool_name:
            return False
        if group.promised_to is not None or group.leaves_for is not None:
            return False
        if group.phase not in (GroupPhase.READY, GroupPhase.CREATING):
            return False
        ending = group.agent in self.state.leaving and bool(self.leaving.keys)
        if group.agent is not None and (
            not (group.agent in gone or ending) or group.phase is GroupPhase.CREATING
        ):
            return False
        nodes = self.state.cluster.nodes
        if any(n not in nodes or nodes[n].cordoned for n in group.node_ids):
            return False
        if not group.reserved:
            return group.shape == self._own(spec)
        if self._entitled(spec):
            return group.shape == self._closest(spec)
        ready = group.phase is GroupPhase.READY and group.agent is None
        spare = ready and new.priority == spec.entitled_above and not self._others_wait()
        return spare and group.shape == self._closest(spec)

    def _others_wait(self) -> bool:
        """Whether another agent of the pool waits for somebody to leave."""
        return any(
            isinstance(agent.phase, Waiting) and agent.spec.pool_name == self.incoming.pool_name
            for agent in self.state.agents.values()
        )

    def _own(self, spec: GroupsSpec) -> GroupShape:
        labels, gang = tuple(sorted(spec.node_labels.items())), self.incoming.gang
        return GroupShape(
            bundles=self.incoming.bundles,
            strategy=(gang.strategy if gang is not None else "") or spec.strategy,
            node_labels=labels,
            same_label="" if gang is None else gang.same_label,
            virtual=self.incoming.is_job,
            topology=self.incoming.topology if len(self.incoming.bundles) > 1 else None,
        )

    def _entitled(self, spec: GroupsSpec) -> bool:
        new = self.incoming
        by_label = bool(spec.entitled_labels) and matches(spec.entitled_labels, dict(new.labels))
        return by_label or new.priority > spec.entitled_above

    def _closest(self, spec: GroupsSpec) -> GroupShape | None:
        own, gang = self._own(spec), self.incoming.gang
        fitting = [
            shape
            for shape in spec.reserved
            if shape.holds(self.incoming.bundles)
            and not self.incoming.is_job
            and own.topology is None
            and (gang is None or (shape.strategy, "") == (own.strategy, own.same_label))
        ]
        return min(fitting, key=lambda s: (s.total.gpu, s.total.cpu, s.total.memory), default=None)

    def _made(self, spec: GroupsSpec, gone: Collection[str]) -> bool:
        """Whether a new group may be made, and has room."""
        return spec.dynamic and any(
            self._have(gone, idle) < spec.max_dynamic
            and self._has_room_with(self._own(spec), gone, self._keys(gone, idle))
            for idle in (0, 1)
        )

    def _have(self, gone: Collection[str], idle: int) -> int:
        """How many dynamic groups the pool has once those of ``gone`` are removed, and unused ones or not."""
        leaving = {
            group.group_id for group in self._leaving(gone) if idle or group.agent is not None
        }
        leaving |= {
            group.group_id
            for group in self.state.groups.by_id.values()
            if (group.node_ids[0], group.key(0)) in self.leaving.keys
        }
        return sum(
            group.pool_name == self.incoming.pool_name
            and not group.reserved
            and not group.shape.virtual
            and group.phase is not GroupPhase.ENDING
            and group.group_id not in leaving
            for group in self.state.groups.by_id.values()
        )

    def _leaving(self, gone: Collection[str]) -> Iterable[Group]:
        """The dynamic groups that may be removed: unused, or of those who are gone."""
        for group in self.state.groups.by_id.values():
            alone = group.promised_to is None and group.leaves_for is None
            unused = group.agent is None or group.agent in gone
            if group.phase is GroupPhase.READY and alone and unused and not group.reserved:
                yield group

    def _has_room(self, shape: GroupShape, gone: Collection[str]) -> bool:
        """Whether there is room, be it with the groups that nobody uses or without them."""
        return any(self._has_room_with(shape, gone, self._keys(gone, idle)) for idle in (0, 1))

    def _has_room_with(
        self, shape: GroupShape, gone: Collection[str], keys: set[tuple[str, str]]
    ) -> bool:
        free = self._free(gone, keys)
        able = [
            n
            for n, (_, _, labels) in free.items()
            if set(shape.node_labels) <= set(labels.items())
            and (not shape.same_label or shape.same_label in labels)
        ]
        for node_ids in product(able, repeat=len(shape.bundles)):
            distinct = len(set(node_ids))
            if shape.strategy == "STRICT_PACK" and distinct > 1:
                continue
            if shape.strategy == "STRICT_SPREAD" and distinct < len(node_ids):
                continue
            if shape.same_label and len({free[n][2][shape.same_label] for n in node_ids}) > 1:
                continue
            if shape.topology is not None and not _is_together(shape.topology, node_ids, free):
                continue
            mine = {
                n: [b for b, at in zip(shape.bundles, node_ids, strict=True) if at == n]
                for n in node_ids
            }
            takes = all(_takes(free[n][0], free[n][1], bundles) for n, bundles in mine.items())
            if takes and all(self._sure(n, bundles, gone, keys) for n, bundles in mine.items()):
                return True
        return False

    def _sure(
        self,
        node_id: str,
        bundles: list[Resources],
        gone: Collection[str],
        keys: set[tuple[str, str]],
    ) -> bool:
        """Whether no agent that has not told its devices can be in the way."""
        node = self.state.cluster.nodes[node_id]
        keys = keys | self.leaving.keys
        left = [key for key in node.allocations if key in gone or (node_id, key) in keys]
        waits = bool(gone or keys or self.seats.waits)
        return is_sure(node, [bundle.gpu for bundle in bundles], left, waits=waits)

    def _keys(self, gone: Collection[str], idle: int) -> set[tuple[str, str]]:
        """Where the bundles stand of groups that are removed, those that nobody uses among them or not: node,
        and under which name.
        """
        return {
            (node_id, group.key(i))
            for group in self._leaving(gone)
            if idle or group.agent is not None
            for i, node_id in enumerate(group.node_ids)
        }

    def _free(
        self, gone: Collection[str], keys: set[tuple[str, str]]
    ) -> dict[str, tuple[Resources, list[int], Mapping[str, str]]]:
        """What would be free on each open node."""
        found = {}
        for node_id, node in self.state.cluster.nodes.items():
            if node.cordoned:
                continue
            free, devices = node.free, list(node.devices)
            free = free - self.leaving.claimed.get(node_id, Resources())
            for key, allocations in node.allocations.items():
                if key in gone or (node_id, key) in keys | self.leaving.keys:
                    gpu = sum(units for _, units in allocations.devices.units)
                    free = free + allocations.held + Resources(gpu=gpu)
                    for i, units in allocations.devices.units:
                        devices[i] += units
            found[node_id] = (free, devices, node.labels)
        return found


def _is_together(
    topology: Topology, node_ids: Sequence[str], free: Mapping[str, tuple[object, object, Labels]]
) -> bool:
    """Whether nodes are in one rack as a topology of that level alone requires it."""
    domains = [free[node_id][2].get("rack", node_id) for node_id in node_ids]
    if topology.required and len(set(domains)) > 1:
        return False
    size = topology.slice_size or 1
    slices = (domains[first : first + size] for first in range(0, len(domains), size))
    return all(len(set(each)) == 1 for each in slices)


def _takes(free: Resources, devices: list[int], bundles: list[Resources]) -> bool:
    """Whether a node takes these together, in any order."""
    for ordered in permutations(bundles):
        room, left = free, list(devices)
        for need in ordered:
            given = devices_for(left, need.gpu)
            if given is None or not need.fits(room):
                break
            room = room - need
            for i, units in given.units:
                left[i] -= units
        else:
            return True
    return False
