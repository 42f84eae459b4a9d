"""Applies facts to the queue; nothing else may change it, but for admissions, which take tasks out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from schedulemesh.domain.arrays import member_id, parse_indices
from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.task import FIRST_ATTEMPT
from schedulemesh.engine.messages import queue_facts as f
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.state.evictions import Evictions
from schedulemesh.engine.state.past import Past, end_in_queue
from schedulemesh.engine.state.queue import Queue, Turns
from schedulemesh.engine.state.queued_tasks import QueuedTask, Reservation, front_of
from schedulemesh.engine.state.tasks import RunningTask, RunningTasks


class QueueFacts:
    """Applies facts to the queue."""

    def __init__(
        self,
        queue: Queue,
        running: RunningTasks,
        past: Past,
        evictions: Evictions,
        requests: dict[str, str],
    ) -> None:
        self._queue, self._running, self._past = queue, running, past
        self._evictions = evictions
        #: See MeshState.
        self._requests = requests

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """What applies each fact."""
        return {
            f.TaskQueued: self._queued,
            f.QueuePlaceChanged: self._place_changed,
            f.DependencyEnded: self._dependency_ended,
            f.ArrayMembersSplit: self._members_split,
            f.ArrayMembersCancelled: self._members_cancelled,
            f.ArrayEnded: self._array_ended,
            f.TaskCancelled: self._cancelled,
            f.QueuePolicyChanged: self._policy_changed,
            f.StartReserved: self._reserved,
            f.ReservationDropped: self._reservation_dropped,
            f.QueuedTasksEstimated: self._estimated,
            f.Ticked: lambda _: None,
            f.TurnsPassed: self._turns_passed,
            f.ImpossibilityNoted: self._impossibility_noted,
        }

    def _queued(self, fact: f.TaskQueued) -> None:
        if fact.submission.request_id is not None:
            self._requests[fact.submission.request_id] = fact.submission.agent.name
        task = QueuedTask(
            submission=fact.submission,
            queued_at=fact.at,
            number=fact.number,
            attempts=fact.attempts,
            not_before=fact.not_before,
            waits_for=fact.waits_for,
        )
        if task.spec.array:
            self._past.forget_members(task.task_id)
            agent = fact.submission.agent
            self._queue.arrays.add(task.spec, agent.kind, agent.name)
        self._queue.add(task)
        self._past.note_queued(task.task_id)
        if task.spec.after and task.attempts == FIRST_ATTEMPT:
            for text in set(task.spec.after).difference(task.waits_for):
                self._past.note_final(dependency(text).task_id)
        self._evictions.note_queued(task.task_id, fact.at)

    def _place_changed(self, fact: f.QueuePlaceChanged) -> None:
        self._queue.change(fact.task_id, held=fact.held, priority=fact.priority, front=fact.front)

    def _dependency_ended(self, fact: f.DependencyEnded) -> None:
        self._queue.note_end(fact.task_id, fact.state, fact.ready, fact.at)
        self._past.note_final(fact.task_id)

    def _members_split(self, fact: f.ArrayMembersSplit) -> None:
        self._queue.split(fact.array_id, fact.indices)
        for index in fact.indices:
            self._past.note_queued(member_id(fact.array_id, index))

    def _members_cancelled(self, fact: f.ArrayMembersCancelled) -> None:
        one = self._queue.arrays.by_id[fact.array_id]
        state = end_in_queue(fact.reason)
        cancelled = parse_indices(fact.indices) if fact.indices else one.remaining
        one.remaining = one.remaining.without(cancelled)
        one.ended[state] = one.ended[state].joined_with(cancelled)
        self._queue.arrays.note_if_over(one)
        self._queue.dependents.note_members_end(fact.array_id, cancelled, state)
        if not one.remaining:
            self._queue.remove(fact.array_id)

    def _array_ended(self, fact: f.ArrayEnded) -> None:
        one = self._queue.arrays.by_id[fact.array_id]
        one.ended_at = fact.at
        one.leaving.clear()
        self._queue.arrays.over.pop(fact.array_id, None)
        self._past.note_array_ended(one, fact)

    def _cancelled(self, fact: f.TaskCancelled) -> None:
        self._past.note_cancelled(self._queue.remove(fact.task_id), fact)

    def _policy_changed(self, fact: f.QueuePolicyChanged) -> None:
        if fact.policy.ordering != self._queue.policy.ordering:
            for task_id in list(self._running.ordered):
                if not front_of(self._running.by_id[task_id]):
                    self._running.note_order(task_id, None)
        self._queue.order_by(fact.policy)

    def _reserved(self, fact: f.StartReserved) -> None:
        reservation = Reservation(
            at=fact.at,
            node_ids=fact.node_ids,
            group_id=fact.group_id,
            first_at=fact.first_at,
            alternative=fact.alternative,
            flavor=fact.flavor,
        )
        self._queue.reserve(fact.task_id, reservation)

    def _estimated(self, fact: f.QueuedTasksEstimated) -> None:
        """Tasks of a kind are expected to run for another time."""
        self._queue.expect(fact.kind, fact.seconds)

    def _turns_passed(self, fact: f.TurnsPassed) -> None:
        self._queue.turns = Turns(evictions=fact.evictions, starts=fact.starts)

    def _impossibility_noted(self, fact: f.ImpossibilityNoted) -> None:
        self._queue.note_impossible(fact.task_id, fact.since)

    def _reservation_dropped(self, fact: f.ReservationDropped) -> None:
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
