"""The contract by plain walks: what the engine answers fast, worked out slowly and independently."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from typing import NamedTuple

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.delays import Delays
from schedulemesh.engine.admission.needs import could_ever_pay, need_of
from schedulemesh.engine.admission.reservations import is_reserved_for, start_of
from schedulemesh.engine.placement.leaving import all_leaving, unclaimed_quota
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.agents import Agent, Ending, Running, Waiting
from schedulemesh.engine.state.device_guarantees import is_sure
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.state.ways import as_reserved, ways_of_task
from schedulemesh.engine.transaction import Transaction

Amounts = dict[str, int]


class GroupRequest(NamedTuple):
    """An incoming task."""

    priority: float
    pool_name: str
    labels: Mapping[str, str]


class Found(NamedTuple):
    """A candidate, as the contract orders and shows it."""

    task_id: str
    score: float
    reason: str
    priority_delta: float
    effective_delta: float
    remaining: float
    started_at: float
    priority: float
    lost_work: float


def longest_chain(rules: Mapping[str, Iterable[str]], high: str, low: str) -> int:
    """Steps of the longest way down from high to low; -1: there is none."""
    if high == low:
        return 0
    ways = [longest_chain(rules, below, low) for below in rules.get(high, ())]
    return max((1 + way for way in ways if way >= 0), default=-1)


def rank(policy: PreemptionPolicy, high: Mapping[str, str], low: Mapping[str, str]) -> int:
    """The highest rank of the keys whose rules match; 0: none does."""
    found = 0
    for key, rules in policy.label_preemption_rules.items():
        if key in high and key in low and low[key] in rules.get(high[key], ()):
            found = max(found, longest_chain(rules, high[key], low[key]))
    return found


def in_return(
    policy: PreemptionPolicy, group_request: GroupRequest, pool_name: str, delta: float
) -> bool:
    """Whether the running task, though it is lower by label, might evict the incoming one by its priority."""
    if policy.label_dominance_protects:
        return False
    if pool_name == group_request.pool_name:
        return -delta >= policy.same_pool_priority_threshold
    if group_request.pool_name in policy.protected_pools:
        return False
    return policy.enable_cross_pool_preemption and -delta >= policy.cross_pool_priority_threshold


def rule(
    policy: PreemptionPolicy,
    group_request: GroupRequest,
    pool_name: str,
    priority: float,
    labels: Mapping[str, str],
) -> tuple[bool, str, float]:
    """Whether the rules let this one go, which rule spoke, and the effective difference."""
    delta = group_request.priority - priority
    same = pool_name == group_request.pool_name
    if pool_name in policy.protected_pools and not same:
        return False, "protected_pool", delta
    if policy.enable_label_preemption:
        over = rank(policy, group_request.labels, labels)
        under = rank(policy, labels, group_request.labels)
        wins = over and not under and max(delta, over) >= policy.label_priority_threshold
        if wins and not in_return(policy, group_request, pool_name, delta):
            return True, "label_based_preemption", max(delta, float(over))
        if under and not over and policy.label_dominance_protects:
            return False, "dominates_by_label", delta
    if same:
        if delta >= policy.same_pool_priority_threshold:
            return True, "same_pool_preemption", delta
        return False, "below_same_pool_threshold", delta
    if not policy.enable_cross_pool_preemption:
        return False, "cross_pool_disabled", delta
    if delta >= policy.cross_pool_priority_threshold:
        return True, "cross_pool_preemption", delta
    return False, "below_cross_pool_threshold", delta


def limited(
    state: MeshState, group_request: GroupRequest, task: RunningTask, now: float, reason: str
) -> tuple[bool, str]:
    """Whether a task that the rules let go may be evicted, and the limit that spares it."""
    policy, spec = state.policy, task.spec
    limit = policy.max_preemptions if spec.max_preemptions is None else spec.max_preemptions
    if task.attempts.preemptions >= limit:
        return False, "preempted_too_often"
    last = state.evictions.last_for.get(group_request.pool_name, -1e18)
    if now < last + policy.preemption_cooldown:
        return False, "in_preemption_cooldown"
    if now < task.started_at + policy.min_runtime:
        return False, "below_min_runtime"
    if policy.lost_work_budget:
        left = policy.lost_work_budget - state.evictions.lost_work_in(spec.pool_name, now)
        lost = now - max(task.started_at, task.saved_at or task.started_at)
        if lost * task.resources.gpu / UNIT > max(0.0, left):
            return False, "exceeds_lost_work_budget"
    return True, reason


def candidates(
    state: MeshState, group_request: GroupRequest, now: float
) -> tuple[list[Found], dict[str, int]]:
    """Every candidate in order, and how many tasks each rule turned away."""
    policy = state.policy
    found: list[Found] = []
    turned: dict[str, int] = {}
    for task_id, task in state.running.by_id.items():
        if task.phase is not TaskPhase.RUNNING:
            turned["already_being_preempted"] = turned.get("already_being_preempted", 0) + 1
            continue
        spec = task.spec
        allowed, reason, effective = rule(
            policy, group_request, spec.pool_name, spec.priority, spec.labels
        )
        remaining = 0.0
        if spec.estimated_duration is not None:
            remaining = max(0.0, task.started_at + spec.estimated_duration - now)
        if allowed:
            allowed, reason = limited(state, group_request, task, now, reason)
        score = effective + policy.remaining_time_weight * remaining
        if allowed and score < policy.min_preempt_score:
            allowed, reason = False, "below_min_preempt_score"
        if not allowed:
            turned[reason] = turned.get(reason, 0) + 1
            continue
        since = max(task.started_at, task.saved_at or task.started_at)
        found.append(
            Found(
                task_id,
                score,
                reason,
                group_request.priority - spec.priority,
                effective,
                remaining,
                task.started_at,
                spec.priority,
                max(0.0, now - since),
            )
        )
    found.sort(key=lambda one: (-one.score, -one.started_at, one.task_id))
    return found, turned


class Leaver(NamedTuple):
    """An agent that may be ended: every task on it is a candidate."""

    name: str
    tasks: tuple[Found, ...]

    @property
    def score(self) -> float:
        """It counts with the lowest of its scores."""
        return min(task.score for task in self.tasks)

    def rate(self, state: MeshState) -> float:
        """What it holds in GPUs; an eighth of its CPUs where it holds none."""
        held = state.agents[self.name].spec.resources
        return (held.gpu or held.cpu / 8) / UNIT or 1.0

    @property
    def delta(self) -> float:
        """The effective difference of priority of the task by whose score it counts."""
        return min(self.tasks, key=lambda task: task.score).effective_delta

    @property
    def order(self) -> tuple[float, float, str]:
        """Ascending is best first."""
        newest = max(task.started_at for task in self.tasks)
        return (-self.score, -newest, self.tasks[0].task_id)


def leavers(state: MeshState, group_request: GroupRequest, now: float) -> list[Leaver]:
    """The agents that may be ended for this task, best first."""
    by_id = {one.task_id: one for one in candidates(state, group_request, now)[0]}
    found = []
    for name, agent in state.agents.items():
        mine = [t for t, task in state.running.by_id.items() if task.agent_name == name]
        if isinstance(agent.phase, Running) and mine and all(t in by_id for t in mine):
            found.append(Leaver(name, tuple(by_id[t] for t in mine)))
    return sorted(found, key=lambda one: one.order)


def as_resources(amounts: Amounts) -> Resources:
    """These units as resources."""
    kinds = {kind: amounts.get(kind, 0) for kind in ("cpu", "memory", "gpu")}
    custom = tuple(sorted((k, n) for k, n in amounts.items() if k not in kinds))
    return Resources(**kinds, custom=custom)


def least_idle(state: MeshState, singles: list[Leaver], need: Resources) -> list[Leaver]:
    """Of these, each of which is enough by itself and the best first, those of the same effective difference
    as the first one that leave least idle. Agents without GPUs count an eighth of their CPUs.
    """

    def idle(one: Leaver) -> float:
        rest = state.agents[one.name].spec.resources.beyond(need)
        return rest.gpu or rest.cpu / 8

    alike = [one for one in singles if one.delta == singles[0].delta]
    least = min(map(idle, alike))
    return [one for one in alike if idle(one) == least]


class InFlight(NamedTuple):
    """What is leaving anyway, as far as an incoming agent may claim it."""

    #: Node and name of each allocation.
    keys: frozenset[tuple[str, str]]
    #: By node: what others that wait still get there.
    claimed: Mapping[str, Resources]
    quota: Resources


NOTHING_LEAVES = InFlight(frozenset(), {}, NOTHING)


def in_flight(state: MeshState, group_request: GroupRequest, *, quota: bool = True) -> InFlight:
    """What an incoming agent may claim of all that is leaving."""
    keys: set[tuple[str, str]] = set()
    claimed: dict[str, Resources] = {}
    total = NOTHING
    for item in all_leaving(state):
        keys.update(item.allocations)
        for node_id, amount in item.claimed:
            claimed[node_id] = claimed.get(node_id, NOTHING) + amount
        may: dict[str, Resources] = {}
        for agent in item.agents:
            for share in agent.shares:
                if quota and _may_have(state, group_request, agent, share.pool_name):
                    may[share.pool_name] = may.get(share.pool_name, NOTHING) + share.amount
        for share in item.unclaimed:
            total = total + may.get(share.pool_name, NOTHING).within(share.amount)
    return InFlight(frozenset(keys), claimed, total)


def _may_have(state: MeshState, group_request: GroupRequest, agent: Agent, pool_name: str) -> bool:
    ending = agent.phase
    assert isinstance(ending, Ending)
    if ending.hold_for is not None or ending.hold_for_client is not None:
        return ending.hold_for == group_request.pool_name
    if pool_name == group_request.pool_name:
        return True
    tasks = [t for t in state.running.by_id.values() if t.agent_name == agent.spec.name]
    return bool(tasks) and all(
        isinstance(task.phase, Preempting)
        and rule(
            state.policy,
            group_request,
            task.spec.pool_name,
            task.spec.priority,
            task.spec.labels,
        )[0]
        for task in tasks
    )


class Seats:
    """Whether an incoming agent fits once some agents are gone."""

    def __init__(
        self,
        state: MeshState,
        pool_name: str,
        need: Resources,
        *,
        anywhere: bool,
        leaving: InFlight = NOTHING_LEAVES,
    ) -> None:
        #: ``leaving``: what counts as gone anyway.
        self.state = state
        self.leaving = leaving
        self.need = dict(need.items())
        #: Whether no room on a node is asked for.
        self.anywhere = anywhere
        self.gpu = need.gpu
        account = state.ledger.accounts[pool_name]
        # A pool above its quota keeps what it has: an eviction in it exchanges, and need not free more.
        own = {kind: max(0, units) for kind, units in account.free.items()}
        for hold in state.ledger.holds.values():
            if hold.for_pool == pool_name:
                for share in hold.shares:
                    for kind, units in share.amount.items():
                        own[kind] = own.get(kind, 0) + units
        self.short = {k: n - own.get(k, 0) for k, n in self.need.items() if n > own.get(k, 0)}
        self.waits = bool(self.short)
        #: Whether no node has room as things are.
        self.by_node = False
        flight = dict(leaving.quota.items())
        self.short = {
            k: n - flight.get(k, 0) for k, n in self.short.items() if n > flight.get(k, 0)
        }

    def open_nodes(self) -> list[str]:
        """The ids of the nodes that take agents."""
        return sorted(n for n, found in self.state.cluster.nodes.items() if not found.cordoned)

    def quota(self, gone: Iterable[str]) -> bool:
        """Whether quota suffices."""
        return not self.quota_left(gone)

    def quota_left(self, gone: Iterable[str]) -> Amounts:
        """What quota still lacks."""
        freed: Amounts = {}
        for name in gone:
            for kind, units in self.state.agents[name].spec.resources.items():
                freed[kind] = freed.get(kind, 0) + units
        return {k: n - freed.get(k, 0) for k, n in self.short.items() if n > freed.get(k, 0)}

    def room_left(self, node_id: str, gone: Collection[str]) -> tuple[Amounts, bool]:
        """What the node still lacks in sums, and whether its devices take the incoming agent."""
        found = self.state.cluster.nodes[node_id]
        free = dict(found.free.items())
        devices = dict(enumerate(found.devices))
        leaving = [key for at, key in self.leaving.keys if at == node_id]
        for kind, units in self.leaving.claimed.get(node_id, NOTHING).items():
            free[kind] = free.get(kind, 0) - units
        gone = [*gone, *leaving]
        for name in gone:
            stands = found.allocations.get(name)
            if stands is None:
                continue
            for kind, units in stands.held.items():
                free[kind] = free.get(kind, 0) + units
            for index, units in stands.devices.units:
                free["gpu"] = free.get("gpu", 0) + units
                devices[index] += units
        lack = {k: n - free.get(k, 0) for k, n in self.need.items() if n > free.get(k, 0)}
        if self.gpu < UNIT:
            fits = self.gpu == 0 or any(units >= self.gpu for units in devices.values())
        else:
            fits = sum(units == UNIT for units in devices.values()) * UNIT >= self.gpu
        here = [name for name in gone if name in found.allocations]
        waits = bool(gone or self.waits or self.leaving.keys)
        return lack, fits and is_sure(found, (self.gpu,), here, waits=waits)

    def room_without_leaving(self, node_id: str, gone: Collection[str]) -> bool:
        """Whether the node has room although nothing counts as gone anyway."""
        now = copy(self)
        now.leaving = NOTHING_LEAVES
        return now.room(node_id, gone)

    def room(self, node_id: str, gone: Collection[str]) -> bool:
        """Whether the node has room."""
        lack, devices = self.room_left(node_id, gone)
        return not lack and devices

    def enough(self, gone: Iterable[str], node_id: str | None = None) -> bool:
        """Whether both books agree, on this node or on any."""
        gone = list(gone)
        if not self.quota(gone):
            return False
        if self.anywhere:
            return True
        nodes = self.open_nodes() if node_id is None else [node_id]
        return any(self.room(one, gone) for one in nodes)


class Later(NamedTuple):
    """A task that would fit, as reserved starts see it."""

    pool_name: str
    need: Resources
    #: Its estimated duration; None: unknown.
    duration: float | None
    #: Its place in the order of the queue.
    entry: tuple[float, int, str]


def is_ruled_out(state: MeshState, task: QueuedTask) -> bool:
    """Whether a task waits in a pool that became smaller than each of its alternatives, loans included."""
    return not any(
        could_ever_pay(state, task.pool_name, need_of(state, each))
        for each in ways_of_task(state.ledger, task)
    )


def held_back(state: MeshState, later: Later, seats: Seats, now: float) -> bool:
    """Whether a task that fits would delay the reserved start of one before it, wherever it ran."""
    delayed = []
    waiting = list(state.queue.by_id.values())
    firsts = state.queue.firsts_of(later.pool_name)
    first = next((task for task in firsts if is_reserved_for(state, task)), None)
    if first is not None and first.reservation is None:
        tx = Transaction(state, now, Strategies())
        reserved = start_of(tx, Delays(tx), first)
        waiting.append(msgspec.structs.replace(first, reservation=reserved))
    for task in waiting:
        if task.reservation is None or state.queue.entry(task) >= later.entry:
            continue
        head, at = as_reserved(state.ledger, task), task.reservation.at
        if at is None and now - head.queued_at < state.queue.policy.backfill_limit_s:
            continue
        over_at = None if later.duration is None else now + later.duration
        if (
            at is not None
            and over_at is not None
            and over_at <= min(at, start_at(state, head, now))
        ):
            continue
        delayed.append(head)
    for head in delayed:
        if head.pool_name == later.pool_name and not _left(state, head, later.need, None, now):
            return True
    if seats.anywhere:
        return False
    return not any(
        seats.room(node_id, ())
        and all(
            _left(state, head, later.need, node_id, now)
            for head in delayed
            if head.reservation is not None and node_id in head.reservation.node_ids
        )
        for node_id in seats.open_nodes()
    )


def _left(
    state: MeshState, head: QueuedTask, need: Resources, node_id: str | None, now: float
) -> bool:
    """Whether enough is left for this task at its reserved start: on the node, or (None) of its quota. Quota
    that is held for its pool pays for tasks of the pool, too.
    """
    if node_id is None and _pays_for_both(state, head, need):
        return True
    account, ends = state.ledger.accounts[head.pool_name], ExpectedEnds(state, head, now)
    until = start_at(state, head, now)
    if node_id is None:
        free = account.free + unclaimed_quota(state, head.pool_name)
        for name, agent in state.agents.items():
            end = _last_end(state, name, ends)
            if end is not None and end <= until and _counts(state, name, end, head.pool_name, ends):
                for share in (*agent.shares, *agent.promised):
                    if share.pool_name == head.pool_name:
                        free = free + share.amount
    else:
        free = _free_at(state, state.cluster.nodes[node_id], ends, until)
    submission = head.submission
    wanted = (
        account.spec.default_agent() if submission.default_resources else submission.agent.resources
    )
    left = dict((free - need).items())
    return all(
        units <= left.get(kind, 0) for kind, units in wanted.items() if kind in dict(need.items())
    )


def start_at(state: MeshState, head: QueuedTask, now: float) -> float:
    """When a task with a reserved start has to be expected to start: now, where what is leaving its nodes
    leaves enough of everything for it, as it may start as soon as that is gone.
    """
    reservation = head.reservation
    if reservation is None or reservation.at is None or reservation.at <= now:
        return now
    need, ends = need_of(state, head), ExpectedEnds(state, head, now)
    nodes = [state.cluster.nodes[n] for n in reservation.node_ids if n in state.cluster.nodes]
    is_left = any(
        isinstance(state.agents[name].phase, Ending) for node in nodes for name in node.allocations
    )
    quota = state.ledger.accounts[head.pool_name].free + unclaimed_quota(state, head.pool_name)
    has_room = all(need.fits(_free_at(state, node, ends, now)) for node in nodes)
    return now if is_left and has_room and need.fits(quota) else reservation.at


def _pays_for_both(state: MeshState, head: QueuedTask, need: Resources) -> bool:
    """Whether what its pool has now is enough for this task and for another one that needs this."""
    both = need_of(state, head) + need
    return not Seats(state, head.pool_name, both, anywhere=True).waits


class ExpectedEnds:
    """When tasks end, as counts for the reserved start of a waiting one. A task that outlives its duration is
    expected to run on for a twentieth of it, one second at least, doubled as often as needed; that counts
    until ``backfill_limit_s`` after the first start that was reserved by it.
    """

    def __init__(self, state: MeshState, head: QueuedTask, now: float) -> None:
        first_at = None if head.reservation is None else head.reservation.first_at
        limit_s = state.queue.policy.backfill_limit_s
        self.now, self.guesses = now, first_at is None or now <= first_at + limit_s

    def end_of(self, task: RunningTask) -> float | None:
        """None: nobody knows."""
        end = task.ends_at
        if end is None or end > self.now:
            return end
        if not self.guesses:
            return None
        overrun_s = max(1.0, (end - task.started_at) * 0.05)
        doublings = 0
        while end + overrun_s * 2**doublings <= self.now:
            doublings += 1
        return end + overrun_s * 2**doublings


def _last_end(state: MeshState, agent_name: str, expected: ExpectedEnds) -> float | None:
    """When the last task of an agent ends; None: of one that is not known, or the agent is ending."""
    agent = state.agents.get(agent_name)
    tasks = [t for t in state.running.by_id.values() if t.agent_name == agent_name]
    if agent is None or isinstance(agent.phase, Ending) or not tasks:
        return None
    ends = [expected.end_of(task) for task in tasks]
    known_ends = [end for end in ends if end is not None]
    return max(known_ends) if len(known_ends) == len(ends) else None


def _counts(
    state: MeshState, agent_name: str, end: float, pool_name: str, expected: ExpectedEnds
) -> bool:
    """Whether the quota of this pool is known to be free when the agent ends: its last task, or one that ends
    at the same time, starts, or is of the pool or paid by it.
    """
    return any(
        task.phase is TaskPhase.STARTING
        or (
            task.phase is TaskPhase.RUNNING
            and pool_name in (task.payers or (task.spec.pool_name,))
            and task.resources != NOTHING
        )
        for task in state.running.by_id.values()
        if task.agent_name == agent_name and expected.end_of(task) == end
    )


def _free_at(state: MeshState, node: Node, expected: ExpectedEnds, until: float) -> Resources:
    """What is free on a node when what is leaving is gone, those have their claims that wait for it, and the
    agents have ended whose tasks all end by then.
    """
    free = node.free
    for name, allocation in node.allocations.items():
        gpu = sum(units for _, units in allocation.devices.units)
        holds = allocation.held + Resources(gpu=gpu)
        agent, end = state.agents[name], _last_end(state, name, expected)
        if isinstance(agent.phase, Ending):
            free = free + holds
        elif isinstance(agent.phase, Waiting):
            free = free - (agent.spec.resources - holds)
            holds = agent.spec.resources
        if end is not None and end <= until:
            free = free + holds
    return free


def best_set(seats: Seats, found: list[Leaver]) -> tuple[set[str], str | None] | None:
    """The contract's choice where no single one is enough: who leaves, and for which node; None: nobody.

    A node is None where some node has room as things are.
    """
    if seats.anywhere or any(seats.room(one, ()) for one in seats.open_nodes()):
        chosen = _fill(seats, found, [])
        return (
            None if chosen is None else ({one.name for one in _needed(seats, chosen, None)}, None)
        )
    plans = []
    for node_id in seats.open_nodes():
        taken: list[Leaver] = []
        for one in found:
            names = [other.name for other in taken]
            if one.name not in seats.state.cluster.nodes[node_id].allocations:
                continue
            if seats.room(node_id, names):
                break
            lack, devices = seats.room_left(node_id, names)
            frees = dict(seats.state.agents[one.name].spec.resources.items())
            if any(kind in frees for kind in lack) or ("gpu" in frees and not devices):
                taken.append(one)
        if not seats.room(node_id, [other.name for other in taken]):
            continue
        filled = _fill(seats, found, taken)
        if filled is None:
            continue
        needed = _needed(seats, filled, node_id)
        tasks = [task for one in needed for task in one.tasks]
        place = (
            max(task.priority for task in tasks),
            len(needed),
            sum(task.lost_work * one.rate(seats.state) for one in needed for task in one.tasks),
            node_id,
        )
        plans.append((place, {one.name for one in needed}, node_id))
    return min(plans)[1:] if plans else None


def _fill(seats: Seats, found: list[Leaver], taken: list[Leaver]) -> list[Leaver] | None:
    chosen = list(taken)
    for one in found:
        short = seats.quota_left(other.name for other in chosen)
        if not short:
            break
        frees = dict(seats.state.agents[one.name].spec.resources.items())
        if one not in chosen and any(kind in frees for kind in short):
            chosen.append(one)
    return chosen if seats.quota(other.name for other in chosen) else None


def _needed(seats: Seats, chosen: list[Leaver], node_id: str | None) -> list[Leaver]:
    kept = sorted(chosen, key=lambda one: one.order)
    for one in list(reversed(kept)):
        rest = [other.name for other in kept if other is not one]
        if seats.quota(rest) and (node_id is None or seats.room(node_id, rest)):
            kept.remove(one)
    return kept
