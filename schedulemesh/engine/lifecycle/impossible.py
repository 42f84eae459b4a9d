"""Waiting tasks that have become impossible: they could not start even if nothing else ran.

What could never start is refused when it is submitted. A task that waits becomes impossible when its pool
is made smaller or leaves its cohort, or when the only nodes that are large enough leave. With
``QueuePolicy.on_impossible`` "cancel" it is cancelled when it has been so for ``impossible_after_s``, and
with it all tasks of its pool that ask for the same, which have been impossible for as long. The time counts
from when only others that are impossible come before it in its pool; and anew after a restart of the
supervisor, because nodes may join again only then.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.admission.decide import understand
from schedulemesh.engine.admission.needs import could_start_alone
from schedulemesh.engine.admission.queue_pass import cancel
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.queue_facts import ImpossibilityNoted
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction


def cancel_impossible(tx: Transaction, *, restarted: bool = False) -> None:
    """Note which of the first tasks of all pools are impossible, and cancel those that have been for too
    long. ``restarted``: the time counts anew.
    """
    queue = tx.state.queue
    cancels = queue.policy.on_impossible == "cancel"
    impossible = {task.task_id: task for task in _impossible_firsts(tx)} if cancels else {}
    for task_id in sorted(queue.impossible.keys() - impossible.keys()):
        tx.emit(ImpossibilityNoted(task_id=task_id, since=None))
    due_at = tx.now - queue.policy.impossible_after_s
    for task_id, task in impossible.items():
        if restarted or task.impossible_since is None:
            tx.emit(ImpossibilityNoted(task_id=task_id, since=tx.now))
        elif task.impossible_since <= due_at:
            _cancel_alike(tx, task)


def _impossible_firsts(tx: Transaction) -> Iterator[QueuedTask]:
    """The first tasks of each pool, as far as they are impossible. In one that is drained nothing starts."""
    state = tx.state
    for pool_name in sorted(state.queue.pools):
        for task in () if pool_name in state.drains.pools else state.queue.firsts_of(pool_name):
            if could_start_alone(state, task):
                break
            yield task


def _cancel_alike(tx: Transaction, task: QueuedTask) -> None:
    """Cancel a task and those of its pool that ask for the same."""
    queue, queue_class = tx.state.queue, task.queue_class
    refused = understand(tx, task.submission)
    if queue_class is None or not isinstance(refused, Refused):
        return
    for *_, task_id in list(queue_class.entries):
        error = (
            f"task {task_id!r} could not have started for {queue.policy.impossible_after_s:g} s even if "
            f"nothing else ran ({refused.error}), and on_impossible is 'cancel'"
        )
        cancel(tx, queue.by_id[task_id], Reason.IMPOSSIBLE, error)
