"""Which tasks may start before those with a reserved start that come before them (backfill)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice

import msgspec

from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.delays import Delays, RunTimes, run_times, sums_on
from schedulemesh.engine.admission.needs import bundles_of, groups_asked, is_ruled_out, need_of
from schedulemesh.engine.admission.reservations import is_reserved_for, reserve, start_of
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import Assignment, GroupRequest
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.lending import clipped
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node, held_by
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.quota import Account
from schedulemesh.engine.state.ways import as_reserved, has_ways
from schedulemesh.engine.transaction import Transaction

#: How many of the tasks with a reserved start are named.
_NAMED = 5
#: At how many tasks of a pool without a reserved start is looked for one that could have one.
_FIRSTS = 10


def first_in_order(state: MeshState, pool_name: str, begin: Entry | None = None) -> Entry | None:
    """The place of the first task of a pool that may start, from this place on; None: there is none. In a
    strict pool nothing is backfilled before it. Left out are extra members, for which nobody waits, and tasks
    that the pool as it is defined could not hold, which may wait for ever; not those for which a node is
    missing, as nodes come and go.
    """
    firsts = state.queue.firsts_of(pool_name, begin)
    return next((state.queue.entry(task) for task in firsts if not is_ruled_out(state, task)), None)


def is_behind(state: MeshState, pool_name: str, entry: Entry) -> bool:
    """Whether another task of the pool comes before one at this place, and may start."""
    first = first_in_order(state, pool_name)
    return first is not None and first < entry


def is_behind_in_strict_pool(state: MeshState, pool_name: str, entry: Entry) -> bool:
    """Whether the pool is strict, and another task of it has to start before one at this place."""
    spec = state.ledger.accounts[pool_name].spec
    return spec.queueing == "strict" and is_behind(state, pool_name, entry)


def count_before(state: MeshState, pool_name: str, entry: Entry) -> int:
    """How many tasks of a pool come before this place, without those that the pool cannot hold."""
    queue = state.queue
    pool = queue.pools.get(pool_name)
    return sum(
        queue_class.entries.bisect_left(entry)
        for queue_class in (() if pool is None else pool.classes.values())
        if not is_ruled_out(state, queue.by_id[queue_class.first[-1]])
    )


def heads_before(state: MeshState, entry: Entry) -> list[str]:
    """The tasks with a reserved start that come before a place, in their order; the first few."""
    queue = state.queue
    places = sorted(queue.entry(queue.by_id[task_id]) for task_id in queue.reserved)
    return [task_id for *_, task_id in places[: bisect_left(places, entry)][:_NAMED]]


class StartWouldDelay(msgspec.Struct, frozen=True, gc=False):
    """A task that fits, but would delay a reserved start wherever it ran."""

    entry: Entry
    #: What it asks for on a node.
    shape: GroupShape
    #: Whether its node is chosen: what takes no room on a node may still start.
    by_node: bool
    #: A later task that needs no less would delay the same starts, unless its run times are within these.
    limits: RunTimes


class Backfill:
    """Decides what is backfilled, and remembers what may not be. For one pass over the queue, or one task."""

    def __init__(self, tx: Transaction, *, keep: bool = False) -> None:
        self._tx = tx
        #: Whether the first task of a pool is given a reserved start where it has none since the last tick.
        self._keep = keep
        self._delays = Delays(tx)
        #: Tasks that could have a reserved start, and have none: they wait for others.
        self._without: set[str] = set()
        #: By pool.
        self._refusals: dict[str, list[StartWouldDelay]] = {}
        #: How often they were forgotten.
        self.forgets = 0

    def permitted(self, request: Request, entry: Entry) -> Request | None:
        """The request, if need be in another place, where it delays no start of a task that comes before it;
        None: there is no such place. ``entry``: its own place in the order.
        """
        delayed = self._outlasted(request, entry)
        return self._elsewhere(request, delayed) if delayed else request

    def permits(self, request: Request, plan: EvictionPlan, entry: Entry) -> bool:
        """Whether a task may start with these evictions, as far as the heads are concerned: the tasks that
        come before it in the order, have a reserved start, and would start while it still runs.

        - A reclaim always may: an owner's quota comes back whoever stands before it.
        - A claim on what is leaving anyway, with which an owner spares its borrowers a reclaim, may take
          quota of the heads, but no room that is reserved for them.
        - Everything else may take neither.
        """
        if plan.only_takes_back:
            return True
        heads = self._outlasted(request, entry)
        if any(self._takes_place(request, plan, head) for head in heads):
            return False
        if plan.spares_borrowers:
            return True
        own_quota = sum_of(
            s.amount for s in request.payment.shares if s.pool_name == request.pool_name
        )
        return not any(
            self._delays.takes_quota(request.pool_name, own_quota, head) for head in heads
        )

    def _takes_place(self, request: Request, plan: EvictionPlan, head: QueuedTask) -> bool:
        """Whether a start with these evictions takes the group that is reserved for a head, or more of its
        room than the victims would hold then.
        """
        if plan.preempted_group is not None and request.group_request is not None:
            in_group = head.reservation is not None and head.reservation.group_id is not None
            return in_group and self._delays.takes_group(
                request.group_request, plan.preempted_group, head
            )
        if plan.placement is None:
            return False
        state = self._tx.state
        bundles = bundles_of(state, request.stimulus.agent, request.need)
        taken = sums_on(plan.placement.node_ids, bundles)
        for victim in plan.victims:
            for node_id, key in victim.allocations:
                if node_id not in taken or not self._delays.outlasts(victim.name, head):
                    continue
                allocation = state.cluster.nodes[node_id].allocations.get(key)
                if allocation is not None:  # one that needs nothing has none
                    taken[node_id] = taken[node_id].beyond(held_by(allocation))
        return self._delays.takes_room(taken, [head])

    def permitted_or_noted(self, request: Request, task: QueuedTask) -> Request | StartWouldDelay:
        """The same for a task of the queue. What it may not is known of later ones, too."""
        entry = self._tx.state.queue.entry(task)
        delayed = self._outlasted(request, entry)
        allowed = self._elsewhere(request, delayed) if delayed else request
        if allowed is not None:
            return allowed
        refusal = StartWouldDelay(
            entry, request.node_shape, task.submission.choose_node, self._delays.limits(delayed)
        )
        if request.group_request is None and not self._tx.state.cluster.set_aside:
            self._refusals.setdefault(task.pool_name, []).append(refusal)
        return refusal

    def refusal_of(self, task: QueuedTask) -> StartWouldDelay | None:
        """Why surely this task may not start; None: that has to be found out. What it needs must fit, and its
        pool's quota too, or it does not start either way.
        """
        refusals = self._refusals.get(task.pool_name)
        state, submission = self._tx.state, task.submission
        need = need_of(state, task)
        if (
            not refusals
            or has_ways(state.ledger, submission)
            or groups_asked(state, submission, task.pool_name, need) is not None
            or _may_borrow_instead_of_reclaiming(state.ledger.accounts[task.pool_name], need)
        ):
            return None
        entry, times = (
            state.queue.entry(task),
            run_times(self._tx, submission, task.pool_name, need),
        )
        node_labels = submission.agent.node_labels
        for other in refusals:
            needs_less = other.entry < entry and other.shape.total.fits(need)
            on_its_nodes = not other.shape.node_labels or other.shape.node_labels == node_labels
            placed_alike = (submission.choose_node and on_its_nodes) or not other.by_node
            if needs_less and placed_alike and not times.within(other.limits):
                return other
        return None

    def refusals_on_nodes(
        self, pool_name: str, node_labels: NodeLabels
    ) -> list[tuple[StartWouldDelay, Resources]]:
        """Why surely later tasks of a pool may not start that run on a node with these labels and need no
        less than this, unless their declared run times are within the limits.
        """
        state = self._tx.state
        if state.ledger.accounts[pool_name].lent or state.queue.policy.estimates:
            return []  # they might borrow, or be over in time by earlier runs
        return [
            (other, other.shape.total)
            for other in self._refusals.get(pool_name, ())
            if other.shape.node_labels in ((), node_labels) or not other.by_node
        ]

    def forget(self) -> None:
        """Others may be backfilled now: one with a reserved start has started."""
        self._refusals.clear()
        self._without.clear()
        self.forgets += 1

    def may_be_over(self, task: QueuedTask) -> bool:
        """Whether a task may be over before a reserved start that it might delay."""
        state = self._tx.state
        entry = state.queue.entry(task)
        first = self._first_of(task.pool_name, entry)
        if first is not None and first.reservation is None:
            return True
        before = self._delays.reserved_before(entry)
        need = need_of(state, task)
        outlasted = self._delays.outlasted(before, task.submission, task.pool_name, need)
        return len(outlasted) < len(before)

    def _outlasted(self, request: Request, entry: Entry) -> list[QueuedTask]:
        """The tasks that come before this one, and before whose starts it is not over. None for an owner that
        borrows no more than others hold of its own quota: it could have that back, whoever comes before.
        """
        if _borrows_instead_of_reclaiming(self._tx.state, request):
            return []
        before = self._delays.reserved_before(entry)
        first = self._first_of(request.pool_name, entry)
        if first is not None and first.reservation is None:
            before += self._with_start(first)
        return self._delays.outlasted(before, request.stimulus, request.pool_name, request.need)

    def _first_of(self, pool_name: str, entry: Entry) -> QueuedTask | None:
        """The first task of a pool before this place for which a start can be reserved; None: there is none
        among the first few.
        """
        state = self._tx.state
        pool = state.queue.pools.get(pool_name)
        if pool is None or not pool.firsts or pool.firsts[0] >= entry:
            return None
        for first in islice(state.queue.firsts_of(pool_name), _FIRSTS):
            if state.queue.entry(first) >= entry:
                return None
            if is_reserved_for(state, first):
                return first
        return None

    def _with_start(self, first: QueuedTask) -> list[QueuedTask]:
        """The first task of a pool with the start that the next tick would reserve for it; empty: it has
        none.
        """
        if first.task_id in self._without:
            return []
        start = start_of(self._tx, self._delays, first)
        if start is None:
            self._without.add(first.task_id)
            return []
        if not self._keep:
            first = msgspec.structs.replace(first, reservation=start)
        else:
            reserve(self._tx, first, start)
        return [as_reserved(self._tx.state.ledger, first)]

    def _elsewhere(self, request: Request, delayed: list[QueuedTask]) -> Request | None:
        """The request, if need be in another place, where it delays none of these; None: nowhere."""
        quota_need = request.quota_need
        if any(self._delays.takes_quota(request.pool_name, quota_need, head) for head in delayed):
            return None
        if isinstance(request.assignment, Assignment) and request.group_request is not None:
            return self._in_another_group(request, request.group_request, delayed)
        return self._on_another_node(request, delayed)

    def _on_another_node(self, request: Request, delayed: list[QueuedTask]) -> Request | None:
        def is_taken_from(node: Node) -> bool:
            return self._delays.takes_room({node.node_id: request.need}, delayed)

        if request.node is None or not is_taken_from(request.node):
            return request
        tx = self._tx
        for node in tx.state.cluster.with_room(request.node_shape, tx.strategies.node):
            if not is_taken_from(node):
                return msgspec.structs.replace(request, node=node)
        return None

    def _in_another_group(
        self, request: Request, group_request: GroupRequest, delayed: Iterable[QueuedTask]
    ) -> Request | None:
        """The request with a group that delays none of these tasks."""
        assignment = request.assignment
        if not isinstance(assignment, Assignment):
            return None
        group, placement = assignment.group, assignment.placement
        if any(self._delays.takes_group(group_request, group, head) for head in delayed):
            return None
        if group is not None and group.reserved:
            return request
        node_ids = () if placement is None else placement.node_ids
        taken = sums_on(node_ids if group is None else group.node_ids, group_request.shape.bundles)
        if not self._delays.takes_room(taken, delayed):
            return request
        if placement is None or assignment.leaving:
            return None
        cluster = self._tx.state.cluster
        reserved = {n for head in delayed if head.reservation for n in head.reservation.node_ids}
        others = [n.node_id for n in cluster.open_nodes() if n.node_id not in reserved]
        elsewhere = Room(cluster).placement(group_request.shape, others)
        if elsewhere is None:
            return None
        assignment = msgspec.structs.replace(assignment, placement=elsewhere)
        return msgspec.structs.replace(request, assignment=assignment)


def _borrows_instead_of_reclaiming(state: MeshState, request: Request) -> bool:
    """Whether its pool's own quota covers a request, counting what the pool has lent, and it takes idle quota
    of others in place of that, so that nobody is evicted for it.
    """
    account = state.ledger.accounts[request.pool_name]
    borrowed = sum_of(s.amount for s in request.payment.shares if s.pool_name != request.pool_name)
    return _could_reclaim(account, request.quota_need, borrowed)


def _may_borrow_instead_of_reclaiming(account: Account, need: Resources) -> bool:
    """The same before it is known who pays: a task that needs less does not say so of one that needs more."""
    return _could_reclaim(account, need, need.beyond(clipped(account.free)))


def _could_reclaim(account: Account, need: Resources, short: Resources) -> bool:
    """Whether the own quota of a pool, counting what the pool has lent, covers the kinds that are short."""
    if not short or not account.lent:
        return False
    of_own_tasks = account.used + account.reserved - account.lent + account.borrowed
    return (of_own_tasks + need).of_kinds(short).fits(account.spec.resources)
