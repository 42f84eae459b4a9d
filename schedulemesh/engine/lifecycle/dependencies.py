"""Dependencies: tasks that start after others, which may have to end in a certain way.

When a task has ended for good, those that start after it wait for it no more. A task that waits for no other
any more comes in the queue as if it were submitted then. One that can never start is cancelled, and those
that start after it in turn.

What ends and joins the queue again in the same step, after an eviction or a failure that is retried, has not
ended for good.
"""

from __future__ import annotations

from itertools import islice

from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.admission.dependencies import unmet
from schedulemesh.engine.admission.queue_pass import cancel
from schedulemesh.engine.lifecycle.arrays import finish_arrays
from schedulemesh.engine.messages.queue_facts import DependencyEnded
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction

#: How many tasks one step cancels; the others follow on the next ones.
_PART = 250


def settle_dependencies(tx: Transaction) -> None:
    """Note the ends that tasks wait for, and cancel those that can never start."""
    queue, remaining = tx.state.queue, _PART
    note_ends(tx)
    while broken_ids := list(islice(queue.dependents.broken, remaining)):
        for task_id in broken_ids:
            _cancel(tx, queue.by_id[task_id])
        remaining -= len(broken_ids)
        note_ends(tx)


def note_ends(tx: Transaction) -> None:
    """Note the ends that tasks wait for, those of arrays included; tasks that can never start are cancelled
    in the next step.
    """
    finish_arrays(tx)
    for task_id, state in list(tx.state.queue.dependents.ended.items()):
        _note_end(tx, task_id, state)


def _note_end(tx: Transaction, task_id: str, state: EndState) -> None:
    """A task has ended that others start after."""
    queue = tx.state.queue
    tasks = sorted(
        (queue.by_id[dependent_id] for dependent_id in queue.dependents.by_task[task_id]),
        key=lambda task: (task.number, task.task_id),
    )
    ready, broken = [], []
    for task in tasks:
        one = next(d for d in map(dependency, task.waits_for) if d.task_id == task_id)
        if not one.is_met_by(state.value):
            broken.append(task.task_id)
        elif len(task.waits_for) == 1 and task.broken_by is None:
            ready.append(task.task_id)
    tx.emit(
        DependencyEnded(
            task_id=task_id, state=state, at=tx.now, ready=tuple(ready), broken=tuple(broken)
        )
    )


def _cancel(tx: Transaction, task: QueuedTask) -> None:
    if task.broken_by is None:
        raise ValueError(f"nothing keeps task {task.task_id!r} from starting for ever")
    text, state = task.broken_by
    error = f"task {task.task_id!r} never starts: {unmet(dependency(text), state.value)}"
    cancel(tx, task, Reason.DEPENDENCY_NOT_MET, error)
