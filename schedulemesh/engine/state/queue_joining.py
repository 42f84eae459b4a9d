"""Where a submission would wait if it joined the queue now, for dry runs. Changes nothing."""

from __future__ import annotations

from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.queue import Queue
from schedulemesh.engine.state.queued_tasks import QueuedTask


def as_joined(
    queue: Queue,
    submission: TaskSubmitted,
    task: TaskSpec,
    now: float,
    waits_for: tuple[str, ...] = (),
) -> QueuedTask:
    """What the submission of a task would be in the queue; ``waits_for``: see ``QueuedTask``. Without the
    estimate of a kind of which none waits.
    """
    return QueuedTask(
        submission=submission,
        queued_at=now,
        number=queue.number_of(task),
        waits_for=waits_for,
        estimate_s=queue.kinds.estimate_of(submission)
        if queue.policy.orders_by_estimates
        else None,
    )


def position_if_joined(queue: Queue, task: QueuedTask) -> int:
    """The ``Queue.position`` of a task that ``as_joined`` gives."""
    pool = queue.pools.get(task.pool_name)
    if pool is None:
        return 1
    if queue.is_withheld(task):
        return pool.size + 1
    return pool.count_before(queue.entry(task)) + 1


def leads_class(queue: Queue, task: QueuedTask) -> bool:
    """Whether a task that ``as_joined`` gives may start, as far as its own state is concerned, and comes
    before all of its class.
    """
    if queue.is_withheld(task):
        return False
    pool = queue.pools.get(task.pool_name)
    queue_class = None if pool is None else pool.classes.get(queue.key_of(task))
    if queue_class is None or not queue_class.entries:
        return True
    return queue.entry(task) < queue_class.first
