"""Explains which tasks a queued one starts after, and where each of them stands."""

from __future__ import annotations

from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.admission.dependencies import has_to, unmet
from schedulemesh.engine.messages.explanation import Finding
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import QueuedTask
from schedulemesh.engine.transaction import Transaction

#: How many of them a sentence names.
_NAMED = 5


def dependency_finding(tx: Transaction, task: QueuedTask) -> Finding:
    """That a task waits for others to end, or never starts because one of them has."""
    if task.broken_by is not None:
        text, state = task.broken_by
        error = f"it is cancelled next: {unmet(dependency(text), state.value)}"
        return Finding(reason=Reason.DEPENDENCY, error=error)
    awaited = [_standing(tx.state, text) for text in task.waits_for[:_NAMED]]
    more = len(task.waits_for) - len(awaited)
    others = f", and for {more} others" if more else ""
    return Finding(
        reason=Reason.DEPENDENCY,
        error=f"it waits for {', for '.join(awaited)}{others}",
        hint="it takes its place in the order when all of them have ended as they have to, and is cancelled "
        "when one ends otherwise",
    )


def _standing(state: MeshState, text: str) -> str:
    """What is waited for of a task, and what that does now."""
    one = dependency(text)
    running = state.running.by_id.get(one.task_id)
    if running is not None:
        where = f"it is {running.phase.value}"
    elif (array := state.arrays.alive(one.task_id)) is not None:
        where = array.described()
    elif (waiting := state.queue.by_id.get(one.task_id)) is not None and waiting.depends:
        where = "it waits for others itself"
    else:
        where = "it waits in the queue"
    return f"task {one.task_id!r} to {has_to(one)} ({where})"
