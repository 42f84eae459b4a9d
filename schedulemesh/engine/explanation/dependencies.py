"""Explains which tasks a queued one starts after, and where each of them stands."""

from __future__ import annotations

from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.engine.admission.dependencies import has_to, unmet
from schedulemesh.engine.messages.explanation import Finding
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction

#: How many of them a sentence names.
_NAMED = 5


def dependency_finding(tx: Transaction, task: QueuedTask) -> Finding:
    """That a task waits for others to end, or never starts because one of them has."""
    if task.broken_by is not None:
        text, state = task.broken_by
        why = unmet(dependency(text), state.value)
        return Finding(reason=Reason.DEPENDENCY, error_text=say("cancelled_next", why=why))
    awaited = [_standing(tx.state, text) for text in task.waits_for[:_NAMED]]
    more = len(task.waits_for) - len(awaited)
    others = say("and_for_others", count=more) if more else ""
    return Finding(
        reason=Reason.DEPENDENCY,
        error_text=say("waits_for_tasks", tasks=awaited, more=others),
        hint_text=say("waits_for_tasks_hint"),
    )


def _standing(state: MeshState, text: str) -> Sentence:
    """What is waited for of a task, and what that does now."""
    one = dependency(text)
    running = state.running.by_id.get(one.task_id)
    if running is not None:
        standing = say("it_is", state=running.phase.value)
    elif (array := state.arrays.alive(one.task_id)) is not None:
        standing = array.described()
    elif (waiting := state.queue.by_id.get(one.task_id)) is not None and waiting.depends:
        standing = say("it_waits_for_others")
    else:
        standing = say("it_waits_in_queue")
    return say("awaited_task", task=one.task_id, end=has_to(one), standing=standing)
