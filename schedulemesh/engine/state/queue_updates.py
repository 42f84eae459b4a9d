"""Applies facts to the queue; nothing else may change it, but for admissions, which take tasks out of it."""

from __future__ import annotations

import msgspec

from schedulemesh.engine.messages import queue_facts as f
from schedulemesh.engine.state.evictions import Evictions
from schedulemesh.engine.state.past import Past
from schedulemesh.engine.state.queue import Queue, QueuedTask, Reservation
from schedulemesh.engine.state.tasks import RunningTask, RunningTasks


class QueueFacts:
    """Applies facts to the queue."""

    def __init__(
        self, queue: Queue, past: Past, evictions: Evictions, requests: dict[str, str]
    ) -> None:
        self._queue, self._past = queue, past
        self._evictions = evictions
        #: See MeshState.
        self._requests = requests

    def queued(self, fact: f.TaskQueued) -> None:
        """A task joins."""
        if fact.submission.request_id is not None:
            self._requests[fact.submission.request_id] = fact.submission.agent.name
        task = QueuedTask(
            submission=fact.submission,
            queued_at=fact.at,
            number=fact.number,
            attempts=fact.attempts,
            not_before=fact.not_before,
        )
        self._queue.add(task)
        self._past.note_queued(task.task_id)
        self._evictions.note_queued(task.task_id, fact.at)

    def place_changed(self, fact: f.QueuePlaceChanged) -> None:
        """A task waits in another way."""
        self._queue.change(fact.task_id, held=fact.held, priority=fact.priority, front=fact.front)

    def cancelled(self, fact: f.TaskCancelled) -> None:
        """A task does not wait any more."""
        self._past.note_cancelled(self._queue.remove(fact.task_id), fact)

    def policy_changed(self, fact: f.QueuePolicyChanged) -> None:
        """Tasks are served in another order."""
        self._queue.order_by(fact.policy)

    def reserved(self, fact: f.StartReserved) -> None:
        """A task's start is reserved."""
        reservation = Reservation(at=fact.at, node_ids=fact.node_ids, group_id=fact.group_id)
        self._queue.reserve(fact.task_id, reservation)

    def reservation_dropped(self, fact: f.ReservationDropped) -> None:
        """A task's start is not reserved any more."""
        self._queue.reserve(fact.task_id, None)


def release_children(running: RunningTasks, queue: Queue, parent_id: str) -> None:
    """Have the children of a completed task run or wait on, without a parent."""
    for task_id in running.children.release(parent_id):
        _forget_parent(running.by_id.get(task_id) or queue.by_id[task_id])


def _forget_parent(task: RunningTask | QueuedTask) -> None:
    spec = msgspec.structs.replace(task.spec, parent="")
    if isinstance(task, RunningTask):
        task.spec = spec
    else:
        task.submission = msgspec.structs.replace(task.submission, task=spec)
