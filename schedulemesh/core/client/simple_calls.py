"""The calls of SimpleScheduler about the queue, which are those of its RayScheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedulemesh.core.client import listings, results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.scheduler import RayScheduler


@public_calls
class SimpleQueueCalls:
    """Changes, cancels and lists queued tasks; sets their order. RayScheduler says more of each call."""

    scheduler: RayScheduler

    def hold_task(self, task_id: str) -> results.Result:
        """Keep a queued task from starting until it is released."""
        return self.scheduler.hold_task(task_id)

    def release_task(self, task_id: str) -> results.Result:
        """Let a held task start again."""
        return self.scheduler.release_task(task_id)

    def set_priority(self, task_id: str, priority: float) -> results.Result:
        """Change the priority of a queued task."""
        return self.scheduler.set_priority(task_id, priority)

    def move_to_front(self, task_id: str) -> results.Result:
        """Have a queued task come before all tasks of its pool that wait now."""
        return self.scheduler.move_to_front(task_id)

    def cancel_tasks(self, task_ids: str | Iterable[str]) -> listings.CancellationResult:
        """Cancel several tasks; returns ``cancelled`` and ``refused``."""
        return self.scheduler.cancel_tasks(task_ids)

    def list_queue(
        self, pool: str | None = None, limit: int | None = None, after: int = 0
    ) -> listings.QueueResult:
        """Return ``tasks``: those that wait in the queue of a pool, or of every pool, in their order."""
        return self.scheduler.list_queue(pool, limit, after)

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
        """Change the given fields of the policy of the queue; returns the whole ``policy``."""
        return self.scheduler.configure_queue(
            order=order,
            ageing_per_hour=ageing_per_hour,
            las_threshold_gpu_hours=las_threshold_gpu_hours,
            las_levels_gpu_hours=las_levels_gpu_hours,
            las_preempts=las_preempts,
            las_smaller_first=las_smaller_first,
            shortest_preempts=shortest_preempts,
            las_victims=las_victims,
            promote_after_s=promote_after_s,
            passing_limit_s=passing_limit_s,
            waiting_weight=waiting_weight,
            waiting_weight_s=waiting_weight_s,
            estimates=estimates,
        )

    def get_queue_policy(self) -> listings.QueuePolicyResult:
        """Return the ``policy`` of the queue."""
        return self.scheduler.get_queue_policy()
