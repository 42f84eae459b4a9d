"""The queue as rows for listings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import msgspec

from schedulemesh.api.queue import ListQueue
from schedulemesh.domain.priorities import own_class_of
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.admission.needs import need_of, why_ruled_out
from schedulemesh.engine.admission.time_limits import run_limit
from schedulemesh.engine.explanation.waiting import WaitCauses
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import Queue
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.protocol.answers import QueueRow
from schedulemesh.runtime.queries import picked

#: How many ranges of the indices of an array a row has.
_RANGES = 8


def positioned(
    state: MeshState, pool_name: str, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, QueuedTask]]:
    """The tasks in a pool's queue with their positions, in their order: those after position ``first``, up
    to ``last``.
    """
    return enumerate(state.queue.of_pool(pool_name, first, last), first + 1)


def asked_for(state: MeshState, request: ListQueue) -> Iterator[tuple[int, QueuedTask]]:
    """The tasks that a request lists with their positions, in the order of each pool."""
    queue, name = state.queue, request.pool_name
    if request.task_ids is not None:
        waiting = in_order(queue, request.task_ids)
        yield from ((queue.position(t), t) for t in waiting if name in (None, t.pool_name))
        return
    last = None if request.limit is None else request.after + request.limit
    for pool in [name] if name is not None else sorted(queue.pools):
        yield from positioned(state, pool, request.after, last)


def in_order(queue: Queue, task_ids: Iterable[str] | None) -> list[QueuedTask]:
    """The tasks with these ids that wait (None: all) in the order of each pool's queue."""
    if task_ids is None:
        return [task for name in sorted(queue.pools) for task in queue.of_pool(name)]
    waiting = picked(queue.by_id, task_ids)
    return sorted(waiting, key=lambda task: (task.pool_name, queue.position(task)))


class QueueRows:
    """Makes the rows of tasks that wait, for one listing: what is the same for all tasks that ask for the
    same is found out once.
    """

    def __init__(self, state: MeshState, causes: WaitCauses, now: float) -> None:
        self._state, self._causes, self._now = state, causes, now
        #: By what is asked for: why its pool could not hold it; None: it could.
        self._ruled_out: dict[Hashable, Reason | None] = {}

    def row_if_queued(self, task: QueuedTask, position: int) -> QueueRow | None:
        """The same as ``row``; None: the task waits no more."""
        if self._state.queue.by_id.get(task.task_id) is not task:
            return None
        return self.row(task, position)

    def row(self, task: QueuedTask, position: int) -> QueueRow:
        """A task that waits at this position."""
        state, queued_at, spec, agent = self._state, task.queued_at, task.spec, task.common.agent
        cause = self._causes.cause_of(task)
        expected_s, runs = expected_duration(state, task)
        return QueueRow(
            task=_with_remaining(state, spec),
            agent_name=task.agent_name,
            kind=agent.kind,
            position=position,
            waiting_s=max(0.0, self._now - queued_at),
            queued_at=queued_at,
            arrived_at=task.arrived_at,
            held=task.held,
            not_before=task.not_before,
            preemptions=task.attempts.preemptions,
            reserved_start=None if task.reservation is None else task.reservation.at,
            expected_s=expected_s,
            estimated_from=runs,
            cannot_start=self._why_ruled_out(task),
            resources=need_of(state, task),
            reason=cause.reason,
            short=cause.short,
            run_limit_s=run_limit(state, task.pool_name, spec),
            node_labels=agent.node_labels,
            own_class=own_class_of(spec.priority, state.policy.priority_classes),
        )

    def _why_ruled_out(self, task: QueuedTask) -> Reason | None:
        kind = self._causes.kind_of(task)
        if kind not in self._ruled_out:
            self._ruled_out[kind] = why_ruled_out(self._state, task)
        return self._ruled_out[kind]


def _with_remaining(state: MeshState, spec: TaskSpec) -> TaskSpec:
    """An array with the indices of those members that are no tasks yet."""
    if not spec.array:
        return spec
    one = state.arrays.by_id[spec.task_id]
    most = f"%{one.most}" if one.most else ""
    return msgspec.structs.replace(spec, array=f"{one.remaining.written(_RANGES)}{most}")


def expected_duration(state: MeshState, task: QueuedTask) -> tuple[float | None, int]:
    """How long a task runs in all, in seconds, and by how many earlier runs that is estimated."""
    declared = task.estimated_duration
    if declared is not None:
        return declared, 0
    estimates = state.past.estimates
    if not estimates.version:
        return None, 0  # no run has ended yet
    estimate = estimates.estimate(TaskKind.of(task.spec, need_of(state, task)))
    return (None, 0) if estimate is None else (estimate.seconds, estimate.runs)
