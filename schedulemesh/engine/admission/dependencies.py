"""Which of the tasks that a submission starts after have not ended, and whether they can end as they have to.

A task can only start after tasks that are on record when it is submitted, so that two never wait for each
other.
"""

from __future__ import annotations

import msgspec

from schedulemesh.domain.dependencies import Dependency, dependency
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.errors import nearest

#: How a sentence says what a task waits for.
_HAS_TO = {"ok": "complete", "any": "end", "fail": "fail or be cancelled"}


def refused_for_dependencies(state: MeshState, stimulus: TaskSubmitted) -> Refused | None:
    """The refusal of a submission that starts after tasks which are not on record, or which have ended
    otherwise than they had to; None: it may be accepted.
    """
    task = stimulus.task
    if task is None or not task.after:
        return None
    if not stimulus.queue and not stimulus.dry_run:
        return Refused(
            reason=Reason.INVALID_DEPENDENCY,
            error=f"task {task.task_id!r} starts after others, and only a task in the queue waits for them",
            hint="submit it with queue=True",
        )
    for one in map(dependency, task.after):
        refused = _refused_for(state, task, one)
        if refused is not None:
            return refused
    return None


def _refused_for(state: MeshState, task: TaskSpec, one: Dependency) -> Refused | None:
    if one.task_id == task.task_id:
        return Refused(
            reason=Reason.INVALID_DEPENDENCY,
            error=f"task {task.task_id!r} would start after itself; name other tasks in after",
        )
    if state.is_alive(one.task_id):
        return None
    end = state.end_of(one.task_id)
    if end is None:
        return Refused(
            reason=Reason.INVALID_DEPENDENCY,
            error=f"there is no task {one.task_id!r}{_nearest(state, one.task_id)} for {task.task_id!r} to "
            "start after; it was never submitted, or ended so long ago that it is forgotten",
            hint="submit the tasks that others start after first",
        )
    if one.is_met_by(end.value):
        return None
    return Refused(
        reason=Reason.DEPENDENCY_NOT_MET,
        error=f"task {task.task_id!r} would never start: {unmet(one, end.value)}",
    )


def unmet(one: Dependency, state: str) -> str:
    """The clause that says why a dependency is never met; ``state``: in which the task has ended."""
    has_to = _HAS_TO[one.condition]
    return f"task {one.task_id!r}, which had to {has_to} before it starts, has ended as {state}"


def awaited_ends(state: MeshState, task: TaskSpec) -> tuple[str, ...]:
    """Those of the tasks which an accepted one starts after that have not ended, as ``after`` has them."""
    return tuple(text for text in task.after if state.is_alive(dependency(text).task_id))


def with_known_dependencies(state: MeshState, stimulus: TaskSubmitted) -> TaskSubmitted:
    """A submission without those of the tasks that it starts after which are not on record here, or have
    ended: in a rehearsal they may have been submitted before the period, or end earlier than they did.
    """
    task = stimulus.task
    if task is None or not task.after:
        return stimulus
    task = msgspec.structs.replace(task, after=awaited_ends(state, task))
    return msgspec.structs.replace(stimulus, task=task)


def has_to(one: Dependency) -> str:
    """The verb that says how a task has to end."""
    return _HAS_TO[one.condition]


def _nearest(state: MeshState, task_id: str) -> str:
    return nearest(task_id, (*state.running.by_id, *state.queue.by_id))
