"""The calls about tasks that wait in the queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from schedulemesh.api.policies import ChangeQueuePolicy, GetQueuePolicy
from schedulemesh.api.queue import ChangeQueuedTask, ListQueue
from schedulemesh.api.results import Result
from schedulemesh.api.tasks import CancelTasks, SetTimeLimit
from schedulemesh.api.values import MAX_NAMES, client_name
from schedulemesh.client.arguments import parse_ids, public_calls
from schedulemesh.client.asking import (
    ask,
    details,
    done,
    logged,
    no_garbage_collection,
    respond,
)
from schedulemesh.client.listings import CancellationResult, QueuePolicyResult, QueueResult
from schedulemesh.client.results import combined
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_priority, parse_timeout
from schedulemesh.engine.messages.outcomes import Refused, TasksCancelled
from schedulemesh.protocol.answers import QueueListed
from schedulemesh.protocol.public import refused, result_of


@public_calls
class QueueCalls(SchedulerObject):
    """A scheduler object that changes, cancels and lists queued tasks, and sets their order and limits."""

    def hold_task(self, task_id: str) -> Result:
        """Keep a queued task from starting until it is released. Its place in the queue stays."""
        return self._change(task_id, held=True)

    def release_task(self, task_id: str) -> Result:
        """Let a held task start again."""
        return self._change(task_id, held=False)

    def set_priority(self, task_id: str, priority: float | str) -> Result:
        """Change the priority of a task, as a number or by the name of its class: of one that waits its place
        in the queue and whom it may evict, of one that runs who may evict it.
        """
        return self._change(task_id, priority=priority)

    def set_time_limit(self, task_id: str, max_run_s: float | str | None) -> Result:
        """Change for how many seconds a task may run that runs or waits, in this attempt and in later ones.

        ``max_run_s`` counts from the start of an attempt, as a number or as "4h"; None: as its pool says. Its
        submitter shortens the limit of a task that runs, and only an operator lengthens it. Refused with
        ``exceeds_time_limit`` beyond the ``max_run_s`` of its pool.
        """
        request = SetTimeLimit(
            task_id=parse_name(task_id, "task_id"),
            max_run_s=None if max_run_s is None else parse_timeout(max_run_s, "max_run_s"),
            request_id=uuid.uuid4().hex,
        )
        return done(self._connection, request)

    def move_to_front(self, task_id: str) -> Result:
        """Have a queued task come before all tasks of its pool that wait now, whatever their priorities."""
        return self._change(task_id, to_front=True)

    def cancel_tasks(self, task_ids: str | Iterable[str]) -> CancellationResult:
        """Cancel several tasks.

        Returns ``cancelled`` (ids), of these ``already_ended`` (those that had ended before), and ``refused``
        (by id); ``success`` is False if one was not cancelled.
        """
        ids = parse_ids(task_ids, "task_ids")
        reasons: dict[str, Refused] = {}
        already_ended: list[str] = []
        for first in range(0, len(ids), MAX_NAMES):
            part = ids[first : first + MAX_NAMES]
            outcome = respond(self._connection, CancelTasks(task_ids=part)).outcome
            if isinstance(outcome, TasksCancelled):
                reasons |= outcome.refused
                already_ended += outcome.already_ended
            elif first == 0 or not isinstance(outcome, Refused):
                return combined(CancellationResult, result_of(outcome))
            else:
                reasons |= dict.fromkeys(part, outcome)
        cancelled = [task_id for task_id in ids if task_id not in reasons]
        refusals = {task_id: refused(why) for task_id, why in reasons.items()}
        if not refusals:
            return {
                "success": True,
                "cancelled": cancelled,
                "already_ended": already_ended,
                "refused": {},
            }
        example = next(iter(refusals.values()))
        return {
            "success": False,
            "error": f"{len(refusals)} of {len(ids)} tasks were not cancelled: {example['error']}",
            "reason": example["reason"],
            "cancelled": cancelled,
            "already_ended": already_ended,
            "refused": refusals,
        }

    def list_queue(
        self, pool: str | None = None, limit: int | None = None, after: int = 0
    ) -> QueueResult:
        """Return ``tasks``: those that wait in the queue of a pool, or of every pool, in their order.

        Each has its fields, ``position``, ``held``, ``waiting_time`` in seconds, and how often it was evicted
        (``preemptions``). ``limit`` is how many of each pool are listed (None: all), ``after`` the position
        after which the list begins: for the next page, the last one of this page. ``total`` counts all.
        """
        request = ListQueue(
            pool_name=None if pool is None else parse_name(pool, "the pool's name"),
            limit=None if limit is None else parse_count(limit, "limit"),
            after=parse_count(after, "after"),
        )
        answer = ask(self._connection, request, QueueListed)
        if isinstance(answer, Refused):
            return combined(QueueResult, refused(answer))
        with no_garbage_collection():
            tasks = [row.public() for row in answer.rows]
        return {"success": True, "tasks": tasks, "total": answer.total}

    def configure_queue(
        self,
        *,
        order: str | None = None,
        ageing_per_hour: float | None = None,
        las_threshold_gpu_hours: float | None = None,
        las_preempts: bool | None = None,
        promote_after_s: float | None = None,
        shortest_preempts: bool | None = None,
        backfill_limit_s: float | None = None,
        waiting_weight: float | None = None,
        waiting_weight_s: float | None = None,
        estimates: bool | None = None,
        on_impossible: str | None = None,
        impossible_after_s: float | None = None,
    ) -> QueuePolicyResult:
        """Change the given fields of the policy of the queue; returns the whole ``policy``.

        ``order`` is "priority", "fifo", "shortest_remaining", "shortest_service", "two_level_las" or
        "dominant_share".
        ``ageing_per_hour`` is by how much an hour of waiting raises a priority, for the order alone;
        ``las_threshold_gpu_hours`` the threshold of "two_level_las", and ``las_preempts`` whether with it
        tasks that have used less may evict those that have used more; ``shortest_preempts`` whether with the
        two orders by remaining time a task may evict those that have more left; ``promote_after_s`` after how
        many seconds of waiting a task comes first, whatever the order; ``backfill_limit_s`` for how many
        seconds later tasks are backfilled before the first one of a pool whose possible start is not known;
        ``waiting_weight`` how much more a pool weighs where pools are compared by their shares, once its
        first task has waited for ``waiting_weight_s`` seconds (0.5: half as much again); ``estimates``
        whether the durations of earlier runs count where none is declared; ``on_impossible`` what becomes of
        the first tasks of a pool that could not start even if nothing else ran: "skip" (they wait) or
        "cancel", after ``impossible_after_s`` seconds.
        """
        changes = {
            "order": order,
            "ageing_per_hour": ageing_per_hour,
            "las_threshold_gpu_hours": las_threshold_gpu_hours,
            "las_preempts": las_preempts,
            "shortest_preempts": shortest_preempts,
            "promote_after_s": promote_after_s,
            "backfill_limit_s": backfill_limit_s,
            "waiting_weight": waiting_weight,
            "waiting_weight_s": waiting_weight_s,
            "estimates": estimates,
            "on_impossible": on_impossible,
            "impossible_after_s": impossible_after_s,
        }
        set_fields = {name: value for name, value in changes.items() if value is not None}
        checked = changed_queue_policy(QueuePolicy(), set_fields).public()
        request = ChangeQueuePolicy(
            changes={name: checked[name] for name in set_fields}, client=client_name()
        )
        return logged("configure_queue", details(self._connection, request, QueuePolicyResult))

    def get_queue_policy(self) -> QueuePolicyResult:
        """Return the ``policy`` of the queue."""
        return details(self._connection, GetQueuePolicy(), QueuePolicyResult)

    def _change(
        self,
        task_id: object,
        *,
        held: bool | None = None,
        priority: object = None,
        to_front: bool = False,
    ) -> Result:
        """Change how a task waits."""
        request = ChangeQueuedTask(
            task_id=parse_name(task_id, "task_id"),
            held=held,
            priority=None if held is not None or to_front else parse_priority(priority),
            to_front=to_front,
            request_id=uuid.uuid4().hex,
        )
        return done(self._connection, request)
