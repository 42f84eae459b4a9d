"""When a queued task can start at the earliest, if the tasks that run end when they are estimated to.

A task needs quota and room on a node. The quota of its pool has to be enough for the tasks that come before
it, too; a node for it alone. Tasks of other pools that wait are not considered, nor are evictions, so it may
start later than this, or earlier. Of the first task of a pool it is the start that is reserved for it.
"""

from __future__ import annotations

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.reservations import classes_by_pool, earliest, need_of
from schedulemesh.engine.placement.group_choice import NoAssignment
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import QueuedTask

#: A time in seconds since 1970, and why it is not known, one of which is empty.
Estimate = tuple[float | None, str]


def earliest_start(state: MeshState, task: QueuedTask, request: Request, now: float) -> Estimate:
    """When the task can start at the earliest, or why that is not known."""
    if task.held:
        return None, "it is held"
    if isinstance(request.assignment, NoAssignment):
        return None, "when nodes have room for a placement group is not estimated"
    asked = request.need + _asked_before(state, task)
    if not asked.fits(state.ledger.accounts[task.pool_name].spec.resources):
        return None, "the tasks that come before it ask for more than its pool has at once"
    classes = classes_by_pool(state).get(task.pool_name, [])
    at, _ = earliest(state, task, asked, classes, now)
    if at is None:
        return None, (
            "tasks that hold what is short have no estimated_duration, or run for longer already"
        )
    return max(at, task.not_before), ""


def _asked_before(state: MeshState, task: QueuedTask) -> Resources:
    """What all tasks that come before it in its pool ask for."""
    queue, asked = state.queue, NOTHING
    entry = queue.entry(task)
    for queue_class in queue.pools[task.pool_name].classes.values():
        count = queue_class.entries.bisect_left(entry)
        if count:
            asked = asked + need_of(state, queue.by_id[queue_class.first[-1]]).times(count)
    return asked
