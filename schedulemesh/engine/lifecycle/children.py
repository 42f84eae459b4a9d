"""Children: tasks that were started from inside another task, and end with it.

A child ends when its parent is cancelled, evicted, failed or lost; an evicted parent starts it again by
itself. When the parent is completed, the child goes on without one. While the parent does not run, nothing
starts a child: it is neither accepted nor started again.

The children of a task that is evicted with its agent end when its grace is over and its state is saved, so
that until then it can use them; those of any other task end with the fact that ends it.
"""

from __future__ import annotations

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.admission.queue_pass import cancel
from schedulemesh.engine.lifecycle.task_ends import cancel_task
from schedulemesh.engine.messages.stimuli import TaskCancellationRequested
from schedulemesh.engine.transaction import Transaction


def end_orphans(tx: Transaction) -> None:
    """End the children of the tasks that this step has ended, and their children in turn."""
    orphans = tx.state.running.children.orphans
    while orphans:
        task_id = next(iter(orphans))
        waiting = tx.state.queue.by_id.get(task_id)
        if waiting is not None:
            cancel(tx, waiting, Reason.PARENT_ENDED, _ended(waiting.spec))
            continue
        error = _ended(tx.state.running.by_id[task_id].spec)
        reason = TaskEndReason.PARENT_ENDED
        cancel_task(tx, TaskCancellationRequested(task_id=task_id, reason=reason, error=error))


def _ended(child: TaskSpec) -> str:
    return f"task {child.parent!r}, which started it, has ended or was evicted"
