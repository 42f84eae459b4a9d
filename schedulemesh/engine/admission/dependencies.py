"""Which of the tasks that a submission starts after have not ended, and whether they can end as they have to.

A task can only start after tasks that are on record when it is submitted, so that two never wait for each
other.
"""

from __future__ import annotations

import msgspec

from schedulemesh.domain.dependencies import Dependency, dependency
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Sentence, Text, did_you_mean, say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState

#: How a sentence says what a task waits for.
_HAS_TO = {"ok": say("to_complete"), "any": say("to_end"), "fail": say("to_fail")}


def refused_for_dependencies(state: MeshState, stimulus: TaskSubmitted) -> Refused | None:
    """The refusal of a submission that starts after tasks which are not on record, or which have ended
    otherwise than they had to; None: it may be accepted.
    """
    task = stimulus.task
    if task is None or not task.after:
        return None
    if not stimulus.queue:
        return Refused(
            reason=Reason.INVALID_DEPENDENCY,
            error_text=say("after_needs_queue", task=task.task_id),
            hint_text=say("after_needs_queue_hint"),
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
            error_text=say("after_itself", task=task.task_id),
        )
    if state.is_alive(one.task_id):
        return None
    end = state.end_of(one.task_id)
    if end is None:
        return Refused(
            reason=Reason.INVALID_DEPENDENCY,
            error_text=say(
                "after_unknown",
                other=one.task_id,
                near=_nearest(state, one.task_id),
                task=task.task_id,
            ),
            hint_text=say(
                "after_unknown_condition_hint" if ":" in one.task_id else "after_unknown_hint"
            ),
        )
    if one.is_met_by(end.value):
        return None
    return Refused(
        reason=Reason.DEPENDENCY_NOT_MET,
        error_text=say("never_starts", task=task.task_id, why=unmet(one, end.value)),
    )


def unmet(one: Dependency, state: str) -> Sentence:
    """The clause that says why a dependency is never met; ``state``: in which the task has ended."""
    return say("dependency_unmet", task=one.task_id, end=has_to(one), state=state)


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


def has_to(one: Dependency) -> Sentence:
    """The verb that says how a task has to end."""
    return _HAS_TO[one.condition]


def _nearest(state: MeshState, task_id: str) -> Text:
    return did_you_mean(task_id, (*state.running.by_id, *state.queue.by_id))
