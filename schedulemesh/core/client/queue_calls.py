"""The calls of a scheduler object about tasks that wait in the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from schedulemesh.core.client import listings, queueing, results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.lifecycle import SchedulerObject


@public_calls
class QueueCalls(SchedulerObject):
    """Submits many tasks at once; changes, cancels and lists queued tasks; sets their order."""

    def submit_many(self, specs: Iterable[Mapping[str, object]]) -> listings.SubmitManyResult:
        """Submit many tasks in messages of up to 100, whose tasks become durable together.

        Each of ``specs`` is a dict of the arguments of ``submit_task_with_preemption``. One that is malformed
        raises InvalidRequestError with its position, and nothing is submitted; one that the scheduler refuses
        does not concern the others. The bytes of a class are sent once, however many tasks use it.

        Returns ``results``, the answer to each submission in their order, and ``refused``, how many were
        refused; ``success`` is False if one was.
        """
        return queueing.submit_many(self._connection, specs)

    def hold_task(self, task_id: str) -> results.Result:
        """Keep a queued task from starting until it is released. Its place in the queue stays."""
        return queueing.change(self._connection, task_id, held=True)

    def release_task(self, task_id: str) -> results.Result:
        """Let a held task start again."""
        return queueing.change(self._connection, task_id, held=False)

    def set_priority(self, task_id: str, priority: float) -> results.Result:
        """Change the priority of a queued task: its place in the queue, and whom it may evict."""
        return queueing.change(self._connection, task_id, priority=priority)

    def move_to_front(self, task_id: str) -> results.Result:
        """Have a queued task come before all tasks of its pool that wait now, whatever their priorities."""
        return queueing.change(self._connection, task_id, to_front=True)

    def cancel_tasks(self, task_ids: str | Iterable[str]) -> listings.CancellationResult:
        """Cancel several tasks.

        Returns ``cancelled`` (ids) and ``refused`` (by id); ``success`` is False if one was not cancelled.
        """
        return queueing.cancel_tasks(self._connection, task_ids)

    def list_queue(
        self, pool: str | None = None, limit: int | None = None, after: int = 0
    ) -> listings.QueueResult:
        """Return ``tasks``: those that wait in the queue of a pool, or of every pool, in their order.

        Each has its fields, ``position``, ``held``, ``waiting_time`` in seconds, and how often it was evicted
        (``preemptions``). ``limit`` is how many of each pool are listed (None: all), ``after`` the position
        after which the list begins: for the next page, the last one of this page. ``total`` counts all.
        """
        return queueing.list_queue(self._connection, pool, limit, after)

    def configure_queue(
        self,
        *,
        order: str | None = None,
        ageing_per_hour: float | None = None,
        las_threshold_gpu_hours: float | None = None,
        las_levels_gpu_hours: Sequence[float] | None = None,
        las_preempts: bool | None = None,
        las_victims: str | None = None,
        promote_after_s: float | None = None,
        las_smaller_first: bool | None = None,
        shortest_preempts: bool | None = None,
        passing_limit_s: float | None = None,
        waiting_weight: float | None = None,
        waiting_weight_s: float | None = None,
        estimates: bool | None = None,
    ) -> listings.QueuePolicyResult:
        """Change the given fields of the policy of the queue; returns the whole ``policy``.

        ``order`` is "priority", "fifo", "shortest_remaining", "shortest_service", "two_level_las",
        "multi_level_las" or "dominant_share".
        ``ageing_per_hour`` is by how much an hour of waiting raises a priority, for the order alone;
        ``las_threshold_gpu_hours`` the threshold of "two_level_las", ``las_levels_gpu_hours`` those of
        "multi_level_las", ascending, and ``las_preempts`` whether with these two tasks may evict tasks of
        later levels: with ``las_victims`` "smallest" first, "most_service" (the one that has used most) or
        "last" (the one that has run for the shortest time in the last level); ``las_smaller_first`` whether
        within a level tasks with fewer GPUs come first; ``shortest_preempts`` whether with the two orders by
        remaining time a task may evict those that have more left; ``promote_after_s`` after how many seconds
        of waiting a task comes first, whatever the order; ``passing_limit_s`` for how many seconds later
        tasks may pass the first one of a pool where nothing is known about when it can start;
        ``waiting_weight`` how much more a pool weighs where pools are compared by their shares, once its
        first task has waited for ``waiting_weight_s`` seconds (0.5: half as much again); ``estimates``
        whether the durations of earlier runs count where none is declared.
        """
        changes = {
            "order": order,
            "ageing_per_hour": ageing_per_hour,
            "las_threshold_gpu_hours": las_threshold_gpu_hours,
            "las_levels_gpu_hours": las_levels_gpu_hours,
            "las_preempts": las_preempts,
            "las_smaller_first": las_smaller_first,
            "shortest_preempts": shortest_preempts,
            "las_victims": las_victims,
            "promote_after_s": promote_after_s,
            "passing_limit_s": passing_limit_s,
            "waiting_weight": waiting_weight,
            "waiting_weight_s": waiting_weight_s,
            "estimates": estimates,
        }
        return queueing.configure_queue(self._connection, changes)

    def get_queue_policy(self) -> listings.QueuePolicyResult:
        """Return the ``policy`` of the queue."""
        return queueing.get_queue_policy(self._connection)
