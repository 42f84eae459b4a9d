"""Reserved starts: what keeps later tasks from delaying the first task of a queue for ever.

The first task of a pool that does not fit gets a reservation: the time at which it can start if the running
tasks end as estimated (``projection``), and where: the node, or for a gang or a placement group the node of
each bundle, or an existing group. A task that comes after it may start before it (backfill, as in the EASY
scheduler of Lifka, 1995) if it ends before that time, or if what is left then is enough for both. Where
nothing is known about the time, that lasts for ``QueuePolicy.backfill_limit_s``; after that, what the first
task needs is kept free until it fits.

Nodes are kept free for a task only if its quota comes: not while nobody knows when its pool has enough of it,
nor before the last ``QueuePolicy.backfill_limit_s`` until then, if it waits for quota longer than for room.
Until then its reservation holds the quota of its own pool alone.

With ``QueuePolicy.estimates``, earlier runs say how long a task runs that declares no duration: the median
of those that took longer than it has run yet says when a running task ends, the upper quartile whether a
later one is over in time. A task that runs for longer than it declared is expected to run on for a time that
grows with its overrun. Such ends may slip, and then the reserved start does, too. So that this cannot go on
for ever, both count for a task only until ``backfill_limit_s`` after the first start that was reserved for it
by them. From then on its start is reserved as if nothing were known of these ends.

A task that becomes the first between two ticks gets its reservation when another would start before it. The
reservations are made anew on each tick, those for placement groups a few at a time, because to search
places for many bundles costs more; the others stay as they are as long as estimates hold. With more pools
than a tick seeks starts for, they take turns in the order of their names.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from math import inf

import msgspec

from schedulemesh.engine.admission.delays import Delays, Projections, sums_on
from schedulemesh.engine.admission.needs import (
    bundles_of,
    can_be_paid,
    could_start_alone,
    could_start_alone_in,
    groups_asked,
    need_of,
    quota_need_of,
)
from schedulemesh.engine.admission.owner_limits import limit_in_each_way
from schedulemesh.engine.admission.projection import Projection, classes_by_pool, quota_free_at
from schedulemesh.engine.admission.turns import in_turn
from schedulemesh.engine.admission.windows import outside, outside_windows
from schedulemesh.engine.messages.queue_facts import ReservationDropped, StartReserved
from schedulemesh.engine.state.groups import shape_on_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask, Reservation
from schedulemesh.engine.state.tasks import TaskClass
from schedulemesh.engine.state.ways import as_reserved, has_ways, in_way_of, ways_of_task
from schedulemesh.engine.transaction import Transaction

#: Reservations of placement groups that are made anew on one tick.
_GROUP_SEARCHES = 4
#: Pools for whose first tasks starts are sought on one tick.
_STARTS = 50


def reserve_starts(tx: Transaction, heads: Iterable[QueuedTask]) -> Generator[None, None, str]:
    """Reserve a start for each of these tasks, and drop the reservations of all others, except of those that
    wait for their next attempt (``requeue``). Starts are sought for so many pools at most, in turn; those of
    others stay as they are. The pool with which the next tick begins. In a tick that is divided it yields
    before each further search.
    """
    queue = tx.state.queue
    keep = {task.task_id: task for task in heads if is_reserved_for(tx.state, task)}
    for task_id in sorted(queue.reserved.keys() - keep.keys()):
        task = queue.by_id[task_id]
        if task.not_before > tx.now and not _is_passed_over(tx.state, task):
            continue
        tx.emit(ReservationDropped(task_id=task_id))
    names, next_name = in_turn({t.pool_name for t in keep.values()}, queue.turns.starts, _STARTS)
    spared, searched = tx.state.spared, _searched_groups(tx, keep.values())
    sought = [
        task
        for task_id, task in keep.items()
        if task.pool_name in names
        and not spared.is_start_of(task_id, task.reservation)
        and (task.reservation is None or not _in_group(tx.state, task) or task_id in searched)
    ]
    if not sought:
        return next_name
    search, was_interrupted = _Search(tx), False
    for number, task in enumerate(sought):
        if number and tx.may_be_interrupted:
            yield
            if search.is_interrupted:
                search, was_interrupted = _Search(tx), True
        # Others may have started, changed or cancelled it.
        if not was_interrupted or _still_waits(tx.state, task):
            search.renew(task)
    return next_name


def _still_waits(state: MeshState, task: QueuedTask) -> bool:
    """Whether a start may be reserved for a task as it was before others changed something."""
    is_same = state.queue.by_id.get(task.task_id) is task
    return is_same and task.queue_class is not None and is_reserved_for(state, task)


class _Search:
    """Seeks the starts of tasks, as long as nobody else changes anything."""

    def __init__(self, tx: Transaction) -> None:
        self._tx, self._resumed = tx, tx.resumed
        self._classes = classes_by_pool(tx.state)
        self._projections = Projections(tx.state, tx.now, tx.estimated_ends)
        self._delays = Delays(tx)

    @property
    def is_interrupted(self) -> bool:
        """Whether others have changed something since: what was found out may hold no longer."""
        return self._tx.resumed > self._resumed

    def renew(self, task: QueuedTask) -> None:
        """Reserve the start that a task has if estimates hold, or drop the one that is reserved."""
        tx, projections = self._tx, self._projections
        classes = self._classes.get(task.pool_name, [])
        earliest = _earliest(tx.state, projections, task, classes)
        start = _after_others(tx, self._delays, task, earliest)
        if start is None:
            if task.reservation is not None:
                tx.emit(ReservationDropped(task_id=task.task_id))
        elif not _same(task.reservation, start, tx.now):
            reserve(tx, task, start)
        elif (
            earliest.at is None
            and not tx.state.windows.by_name
            and projections.of(task).nothing_ends
        ):
            tx.state.spared.note_start(task.task_id, start)


def _is_passed_over(state: MeshState, task: QueuedTask) -> bool:
    """Whether a task may not start at present: because of its owner's limits, of a budget, or as a member of
    an array.
    """
    if limit_in_each_way(state, task) is not None or state.arrays.is_full(task.spec):
        return True
    return state.budgets.holds(task.pool_name, task.spec.owner, task.need_of_class)


def is_reserved_for(state: MeshState, task: QueuedTask) -> bool:
    """Whether a start is reserved for the task when it is the first of its pool that does not fit. None is
    for one that could not even start if nothing else ran: nothing that is kept free helps it.
    """
    pool_name = task.pool_name
    reserves_none = state.ledger.accounts[pool_name].spec.queueing == "greedy"
    if reserves_none or pool_name in state.drains.pools:
        return False
    return could_start_alone(state, task)


def _same(reserved: Reservation | None, start: Reservation, now: float) -> bool:
    """Whether a reservation needs no change: a start that is due does not become a later one on each tick."""
    if reserved is None or reserved.at is None or start.at is None:
        return reserved == start
    return msgspec.structs.replace(start, at=max(start.at, now)) == msgspec.structs.replace(
        reserved, at=max(reserved.at, now)
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
    has_own_group = task.submission.agent.own_group is not None
    return has_own_group or state.ledger.accounts[task.pool_name].spec.groups is not None


def _earliest(
    state: MeshState,
    projections: Projections,
    task: QueuedTask,
    classes: list[TaskClass],
) -> Reservation:
    """When and where the task can start if estimates hold."""
    projection = projections.of(task)
    start = _first_start(state, projection, task, classes)
    first_at = task.first_at
    ends = projection.ends
    if first_at is None and (ends.estimated or start.at in ends.guessed):
        first_at = start.at
    return msgspec.structs.replace(start, first_at=first_at)


def _first_start(
    state: MeshState, projection: Projection, task: QueuedTask, classes: list[TaskClass]
) -> Reservation:
    """When and where it can start in the first of its alternatives that could start if nothing else ran: it
    may start in another one before. With several, in the one that can start first.
    """
    if not has_ways(state.ledger, task.submission):
        return _start(state, projection, task, classes)
    starts = [
        in_way_of(_start(state, projection, each, classes), each)
        for each in ways_of_task(state.ledger, task)
        if could_start_alone_in(state, each)
    ]
    return min(starts, key=_when)


def _when(start: Reservation) -> tuple[float, bool]:
    """The sort key of starts: the earliest; of those whose time is not known, one that has a place. Of equal
    ones the first is taken.
    """
    at = inf if start.at is None else start.at
    return (at, start.group_id is None and not start.node_ids)


def _start(
    state: MeshState, projection: Projection, task: QueuedTask, classes: list[TaskClass]
) -> Reservation:
    need, reservation = need_of(state, task), task.reservation
    quota_at = _quota_at(state, projection, task, classes)
    if quota_at is None or not task.submission.choose_node or not state.nodes_known:
        return Reservation(at=quota_at)
    group_request = groups_asked(state, task.submission, task.pool_name, need)
    shape = shape_on_node(task.submission.agent, need)
    prefer, now = () if reservation is None else reservation.node_ids, projection.ends.now
    with outside_windows(state, task.submission, now):
        place = projection.place(shape, group_request, prefer)
        place = outside(state, place, group_request, shape, task.submission, now)
    if place.at is None or place.at < quota_at:
        at = None if place.at is None else quota_at
        if quota_at > projection.ends.now + state.queue.policy.backfill_limit_s:
            return Reservation(at=at)
        return msgspec.structs.replace(place, at=at)
    return place


def _quota_at(
    state: MeshState, projection: Projection, task: QueuedTask, classes: list[TaskClass]
) -> float | None:
    """When the task has its quota, of its pool alone or with what is idle in the cohort now; None: nobody
    knows.
    """
    need = quota_need_of(state, task)
    if can_be_paid(state, task.pool_name, need, task.submission.client):
        return projection.ends.now
    return quota_free_at(state, task.pool_name, need, classes, projection.ends)


def _after_others(
    tx: Transaction, delays: Delays, task: QueuedTask, start: Reservation
) -> Reservation | None:
    """The start, where it is due but would delay those of tasks that come before: not before theirs, and none
    where theirs is not known. Else nothing could be backfilled for as long.
    """
    if start.at is None or start.at > tx.now:
        return start
    state = tx.state
    task = as_reserved(state.ledger, msgspec.structs.replace(task, reservation=start))
    need, quota_need = need_of(state, task), quota_need_of(state, task)
    taken = sums_on(start.node_ids, bundles_of(state, task.submission.agent, need))
    before = delays.reserved_before(state.queue.entry(task))
    delayed = [
        head
        for head in delays.outlasted(before, task.submission, task.pool_name, need)
        if delays.takes_quota(task.pool_name, quota_need, head) or delays.takes_room(taken, [head])
    ]
    times = [head.reservation.at for head in delayed if head.reservation is not None]
    known_times = [at for at in times if at is not None]
    if len(known_times) < len(times):
        return None
    return msgspec.structs.replace(start, at=max(known_times)) if known_times else start


def start_of(tx: Transaction, delays: Delays, task: QueuedTask) -> Reservation | None:
    """When and where a task that has no reserved start yet can start if estimates hold; None: it has to wait
    for another one of which that is not known.
    """
    classes = classes_by_pool(tx.state).get(task.pool_name, [])
    projections = Projections(tx.state, tx.now, tx.estimated_ends)
    earliest = _earliest(tx.state, projections, task, classes)
    return _after_others(tx, delays, task, earliest)


def reserve(tx: Transaction, task: QueuedTask, start: Reservation) -> None:
    """Give a task this start."""
    tx.emit(
        StartReserved(
            task_id=task.task_id,
            at=start.at,
            node_ids=start.node_ids,
            group_id=start.group_id,
            first_at=start.first_at,
            alternative=start.alternative,
            flavor=start.flavor,
        )
    )
