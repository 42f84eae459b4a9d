"""When a queued task can start at the earliest, if the tasks that run end when they are estimated to.

A task needs quota, and room on a node or for a placement group. The quota of its pool has to be enough for
the tasks that come before it, too; the room for it alone. Tasks of other pools that wait are not considered,
nor are evictions, so it may start later than this, or earlier. Of the first task of a pool it is the start
that is reserved for it.
"""

from __future__ import annotations

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.needs import need_of
from schedulemesh.engine.admission.projection import Projection, classes_by_pool, quota_free_at
from schedulemesh.engine.state.lending import could_ever_borrow
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import QueuedTask

#: A time in seconds since 1970, and why it is not known, one of which is empty.
Estimate = tuple[float | None, str]


def earliest_start(state: MeshState, task: QueuedTask, request: Request, now: float) -> Estimate:
    """When the task can start at the earliest, or why that is not known."""
    if task.held:
        return None, "it is held"
    reserved = None if task.reservation is None else task.reservation.at
    at, why = (reserved, "") if reserved is not None else _estimated(state, task, request, now)
    return (None, why) if at is None else (max(at, now, task.not_before), "")


def _estimated(state: MeshState, task: QueuedTask, request: Request, now: float) -> Estimate:
    """When there is quota and room for a task whose start is not reserved."""
    asked = request.need + _asked_before(state, task)
    own = state.ledger.accounts[task.pool_name].spec.resources
    if asked == request.need and not request.payment.short:
        asked = NOTHING
    elif not asked.fits(own + could_ever_borrow(state.ledger, task.pool_name)):
        return None, "the tasks that come before it ask for more than its pool has at once"
    elif not asked.fits(own):
        return None, "when its cohort has idle quota to borrow is not estimated"
    classes = classes_by_pool(state)
    quota_at = quota_free_at(state, task.pool_name, asked, classes.get(task.pool_name, []), now)
    place_at: float | None = now
    if request.unassigned:
        place_at = Projection(state, now).place(request.need, request.group_request).at
    if quota_at is None or place_at is None:
        return None, (
            "tasks that hold what is short have no estimated_duration, or run for longer already"
        )
    return max(quota_at, place_at), ""


def _asked_before(state: MeshState, task: QueuedTask) -> Resources:
    """What all tasks that come before it in its pool ask for."""
    queue, asked = state.queue, NOTHING
    entry = queue.entry(task)
    for queue_class in queue.pools[task.pool_name].classes.values():
        count = queue_class.entries.bisect_left(entry)
        if count:
            asked = asked + need_of(state, queue.by_id[queue_class.first[-1]]).times(count)
    return asked
