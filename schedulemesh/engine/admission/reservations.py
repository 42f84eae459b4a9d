"""Reserved starts: what keeps later tasks from delaying the first task of a queue for ever.

The first task of a pool that does not fit gets a reservation: the time at which it can start if the running
tasks end as estimated (``projection``), and where: the node, or for a gang or a placement group the node of
each bundle, or an existing group. A task that comes after it may start before it (backfill, as in the EASY
scheduler of Lifka, 1995) if it ends before that time, or if what is left then is enough for both. Where
nothing is known about the time, later tasks may pass it for ``QueuePolicy.passing_limit_s``; after that, what
the first task needs is kept free until it fits.

With ``QueuePolicy.estimates``, earlier runs say how long a task runs that declares no duration: the median
of those that took longer than it has run yet says when a running task ends, the upper quartile whether a
later one is over in time. Such ends may slip, and then the reserved start does, too, as with declared
durations that are too short. So that this cannot go on for ever, estimates count for a task only until
``passing_limit_s`` after the first start that was reserved for it by them. From then on its start is reserved
as if there were none.

A task that becomes the first between two ticks gets its reservation when another would pass it. The
reservations are made anew on each tick, those for placement groups a few at a time, because to search
places for many bundles costs more; the others stay as they are as long as estimates hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.ends import Ends
from schedulemesh.engine.admission.needs import bundles_of, groups_asked, need_of
from schedulemesh.engine.admission.projection import Projection, classes_by_pool, quota_free_at
from schedulemesh.engine.messages.queue_facts import ReservationDropped, StartReserved
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import Assignment, GroupRequest
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.queue import QueuedTask, Reservation
from schedulemesh.engine.state.queue_classes import Entry
from schedulemesh.engine.state.tasks import TaskClass
from schedulemesh.engine.transaction import Transaction

#: Reservations of placement groups that are made anew on one tick.
_GROUP_SEARCHES = 4

#: What a task takes, by node.
_Taken = Mapping[str, Resources]


class _Projections:
    """The projections of one time: with estimates, and without them."""

    def __init__(
        self, state: MeshState, now: float, known: dict[str, float | None] | None = None
    ) -> None:
        self._state = state
        self._now = now
        #: See ``Ends``.
        self._known = known
        self._made: dict[bool, Projection] = {}

    def of(self, head: QueuedTask) -> Projection:
        """By which the start of a task is reserved."""
        estimated = counts_estimates(self._state, head, self._now)
        if estimated not in self._made:
            ends = Ends(self._state, self._now, estimated=estimated, known=self._known)
            self._made[estimated] = Projection(self._state, ends)
        return self._made[estimated]


def counts_estimates(state: MeshState, head: QueuedTask, now: float) -> bool:
    """Whether the start of a task may be reserved by the durations of earlier runs."""
    policy, reserved = state.queue.policy, head.reservation
    if not policy.estimates or reserved is None or reserved.first_at is None:
        return policy.estimates
    return now <= reserved.first_at + policy.passing_limit_s


# reserving


def reserve_starts(tx: Transaction, heads: Iterable[QueuedTask]) -> None:
    """Reserve a start for each of these tasks, and drop the reservations of all others."""
    queue = tx.state.queue
    keep = {task.task_id: task for task in heads if _reserves(tx.state, task)}
    for task_id in sorted(queue.reserved.keys() - keep.keys()):
        tx.emit(ReservationDropped(task_id=task_id))
    spared, searched = tx.state.spared, _searched_groups(tx, keep.values())
    sought = [
        task
        for task_id, task in keep.items()
        if not spared.is_start_of(task_id, task.reservation)
        and (task.reservation is None or not _in_group(tx.state, task) or task_id in searched)
    ]
    if not sought:
        return
    classes = classes_by_pool(tx.state)
    projections = _Projections(tx.state, tx.now, tx.estimated_ends)
    for task in sought:
        start = _earliest(tx.state, projections, task, classes.get(task.pool_name, []))
        if not _same(task.reservation, start, tx.now):
            tx.emit(_reserved(task.task_id, start))
        elif start.at is None and projections.of(task).nothing_ends:
            spared.note_start(task.task_id, start)


def _reserves(state: MeshState, task: QueuedTask) -> bool:
    """Whether a start is reserved for the task when it is the first of its pool."""
    return state.ledger.accounts[task.pool_name].spec.queueing != "greedy"


def _same(reserved: Reservation | None, start: Reservation, now: float) -> bool:
    """Whether a reservation needs no change: a start that is due does not become a later one on each tick."""
    if reserved is None or reserved.at is None or start.at is None:
        return reserved == start
    return msgspec.structs.replace(start, at=max(start.at, now)) == msgspec.structs.replace(
        reserved, at=max(reserved.at, now)
    )


def _reserved(task_id: str, start: Reservation) -> StartReserved:
    return StartReserved(
        task_id=task_id,
        at=start.at,
        node_ids=start.node_ids,
        group_id=start.group_id,
        first_at=start.first_at,
    )


def _searched_groups(tx: Transaction, heads: Iterable[QueuedTask]) -> set[str]:
    """Of the tasks that need placement groups those whose places are sought again on this tick: all whose
    time has passed, and of the others a few by turns.
    """
    groups = [head for head in heads if _in_group(tx.state, head)]
    turns = -(-len(groups) // _GROUP_SEARCHES)
    return {
        head.task_id
        for number, head in enumerate(groups)
        if number % turns == int(tx.now) % turns
        or (head.reservation is not None and (head.reservation.at or tx.now + 1) < tx.now)
    }


def _in_group(state: MeshState, task: QueuedTask) -> bool:
    """Whether it runs in a placement group."""
    own = task.submission.agent.own_group is not None
    return own or state.ledger.accounts[task.pool_name].spec.groups is not None


def _earliest(
    state: MeshState,
    projections: _Projections,
    task: QueuedTask,
    classes: list[TaskClass],
) -> Reservation:
    """When and where the task can start if estimates hold."""
    projection, known = projections.of(task), task.reservation
    start = _start(state, projection, task, classes)
    first_at = None if known is None else known.first_at
    if first_at is None and projection.ends.estimated:
        first_at = start.at
    return msgspec.structs.replace(start, first_at=first_at)


def _start(
    state: MeshState, projection: Projection, task: QueuedTask, classes: list[TaskClass]
) -> Reservation:
    need, known = need_of(state, task), task.reservation
    quota_at = quota_free_at(state, task.pool_name, need, classes, projection.ends)
    if not task.submission.choose_node or not state.nodes_known:
        return Reservation(at=quota_at)
    asked = groups_asked(state, task.submission, task.pool_name, need)
    place = projection.place(need, asked, () if known is None else known.node_ids)
    at = None if quota_at is None or place.at is None else max(quota_at, place.at)
    return msgspec.structs.replace(place, at=at)


# later tasks


def permitted(
    tx: Transaction, request: Request, entry: Entry, *, keep: bool = False
) -> Request | None:
    """The request, if need be in another place, where it delays no start of a task that comes before it;
    None: there is no such place. ``entry``: its own place in the order. ``keep``: whether the first task of
    its pool is given a reserved start where it has none since the last tick.
    """
    state = tx.state
    before = [
        head
        for head in map(state.queue.by_id.__getitem__, state.queue.reserved)
        if state.queue.entry(head) < entry
    ]
    first = state.queue.first_of(request.pool_name)
    if (
        first is not None
        and first.reservation is None
        and state.queue.entry(first) < entry
        and _reserves(state, first)
    ):
        before.append(_with_start(tx, first, keep=keep))
    if not before:
        return request
    delayed = [head for head in before if not _ends_before(tx, request, head)]
    if not delayed:
        return request
    projections = _Projections(state, tx.now, tx.estimated_ends)
    if any(_takes_quota(tx, request, head, projections) for head in delayed):
        return None
    if isinstance(request.assignment, Assignment) and request.group_request is not None:
        return _in_another_group(tx, request, request.group_request, projections, delayed)
    return _on_another_node(tx, request, projections, delayed)


def _with_start(tx: Transaction, first: QueuedTask, *, keep: bool) -> QueuedTask:
    """The first task of a pool with the start that the next tick would reserve for it."""
    start = start_of(tx.state, first, tx.now, tx.estimated_ends)
    if not keep:
        return msgspec.structs.replace(first, reservation=start)
    tx.emit(_reserved(first.task_id, start))
    return first


def start_of(
    state: MeshState, task: QueuedTask, now: float, known: dict[str, float | None] | None = None
) -> Reservation:
    """When and where a task that has no reserved start yet can start if estimates hold. ``known``: as in
    ``Ends``.
    """
    classes = classes_by_pool(state).get(task.pool_name, [])
    return _earliest(state, _Projections(state, now, known), task, classes)


def _on_another_node(
    tx: Transaction, request: Request, projections: _Projections, delayed: list[QueuedTask]
) -> Request | None:
    def delays(node: Node) -> bool:
        return _delays(tx, projections, {node.node_id: request.need}, delayed)

    if request.node is None or not delays(request.node):
        return request
    for node in tx.state.cluster.with_room(request.need, tx.strategies.node):
        if not delays(node):
            return msgspec.structs.replace(request, node=node)
    return None


def _in_another_group(
    tx: Transaction,
    request: Request,
    asked: GroupRequest,
    projections: _Projections,
    delayed: list[QueuedTask],
) -> Request | None:
    """The request with a group that delays none of these tasks."""
    assignment = request.assignment
    if not isinstance(assignment, Assignment):
        return None
    group, placement = assignment.group, assignment.placement
    if any(_takes_group(tx, asked, group, head, projections) for head in delayed):
        return None
    if group is not None and group.reserved:
        return request
    node_ids = () if placement is None else placement.node_ids
    taken = _sums(node_ids if group is None else group.node_ids, asked.shape.bundles)
    if not _delays(tx, projections, taken, delayed):
        return request
    if placement is None or assignment.leaving:
        return None
    reserved = {n for head in delayed if head.reservation for n in head.reservation.node_ids}
    others = [n.node_id for n in tx.state.cluster.open_nodes() if n.node_id not in reserved]
    elsewhere = Room(tx.state.cluster).placement(asked.shape, others)
    if elsewhere is None:
        return None
    assignment = msgspec.structs.replace(assignment, placement=elsewhere)
    return msgspec.structs.replace(request, assignment=assignment)


def _ends_before(tx: Transaction, request: Request, head: QueuedTask) -> bool:
    """Whether the request is over, or may pass, before the start that is reserved for this task."""
    reservation, task = head.reservation, request.stimulus.task
    if reservation is None:
        return True
    if reservation.at is None:
        return tx.now - head.queued_at < tx.state.queue.policy.passing_limit_s
    if task is None:
        return False
    estimated = counts_estimates(tx.state, head, tx.now)
    return tx.now + run_time(tx, task, request.need, estimated=estimated) <= reservation.at


def run_time(
    tx: Transaction, task: TaskSpec, need: Resources, *, estimated: bool | None = None
) -> float:
    """The seconds after which a task is over: as declared, or with ``estimated`` (None: if the policy has
    estimates) by earlier runs; infinite where nothing is known.
    """
    if task.estimated_duration is not None:
        return task.estimated_duration
    if not (tx.state.queue.policy.estimates if estimated is None else estimated):
        return inf
    estimate = tx.state.past.estimates.estimate(TaskKind.of(task, need))
    return inf if estimate is None else estimate.high_s


def _takes_quota(
    tx: Transaction, request: Request, head: QueuedTask, projections: _Projections
) -> bool:
    """Whether the quota that is left at the reserved start would not be enough for its task."""
    if request.pool_name != head.pool_name:
        return False
    state, pool_name = tx.state, head.pool_name
    need, classes = need_of(state, head), classes_by_pool(state).get(pool_name, [])
    ends = projections.of(head).ends
    at = quota_free_at(state, pool_name, need, classes, ends, taken=request.need)
    return at is None or at > _at(head, tx.now)


def _takes_group(
    tx: Transaction,
    asked: GroupRequest,
    group: Group | None,
    head: QueuedTask,
    projections: _Projections,
) -> bool:
    """Whether a task of the same pool would use the group that this task is to get, or the last one that the
    pool may have.
    """
    if head.pool_name != asked.pool_name or head.reservation is None:
        return False
    if head.reservation.group_id is not None:
        return group is not None and group.group_id == head.reservation.group_id
    if group is not None and group.reserved:
        return False
    groups = tx.state.groups
    living = groups.dynamic_count(asked.pool_name) + (group is None)
    if living < asked.spec.max_dynamic:
        return False
    ends = projections.of(head).ends
    ending = _ending_groups(tx, asked.pool_name, _at(head, tx.now), ends)
    return living - ending + (group is not None and group.free) >= asked.spec.max_dynamic


def _ending_groups(tx: Transaction, pool_name: str, until: float, ends: Ends) -> int:
    """How many dynamic groups of a pool nobody uses at a time."""
    state = tx.state
    groups = map(state.groups.by_id.__getitem__, state.groups.of_pool.get(pool_name, ()))
    times = (ends.of_group(group) for group in groups if group.dynamic)
    return sum(end is not None and end <= until for end in times)


def _delays(
    tx: Transaction, projections: _Projections, taken: _Taken, heads: Iterable[QueuedTask]
) -> bool:
    """Whether what is left on some node at a reserved start would not be enough for its task."""
    state = tx.state
    for head in heads:
        reservation = head.reservation
        if reservation is None or not any(n in taken for n in reservation.node_ids):
            continue
        bundles = bundles_of(state.cluster, head.submission.agent, need_of(state, head))
        for node_id, need in _sums(reservation.node_ids, bundles).items():
            node = state.cluster.nodes.get(node_id)
            if node is None or node_id not in taken:
                continue
            left = projections.of(head).free_by(node, _at(head, tx.now)) - taken[node_id]
            if not need.fits(left):
                return True
    return False


def _sums(node_ids: Iterable[str], bundles: Iterable[Resources]) -> dict[str, Resources]:
    """What bundles take on each node."""
    found: dict[str, Resources] = {}
    for node_id, need in zip(node_ids, bundles, strict=False):
        found[node_id] = found.get(node_id, NOTHING) + need
    return found


def _at(head: QueuedTask, now: float) -> float:
    """The reserved time; now where it is not known, or has come and the task could not start yet."""
    reserved = head.reservation
    return now if reserved is None or reserved.at is None else max(reserved.at, now)
