"""The calls of a SimpleScheduler that follow tasks after their submission."""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.core.client import results, task_results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.futures import TaskFuture
from schedulemesh.core.client.scheduler import RayScheduler


@public_calls
class SimpleTaskFollower:
    """Waits for tasks, returns their results and cancels them."""

    #: The RayScheduler that carries out the calls.
    scheduler: RayScheduler

    def wait(
        self,
        task_ids: str | Iterable[str],
        timeout: float | None = None,
        until: str = "ended",
        progress: bool = False,
    ) -> task_results.WaitResult:
        """Wait until tasks have ended, or (``until="running"``) run; see RayScheduler.wait."""
        return self.scheduler.wait(task_ids, timeout, until, progress)

    def result(self, task_id: str) -> task_results.TaskResultDict:
        """Return what a task that runs by itself has returned, as ``result``, or raise what it raised."""
        return self.scheduler.result(task_id)

    def future(self, task_id: str) -> TaskFuture:
        """A future of the task's result, for ``await`` and ``concurrent.futures``."""
        return self.scheduler.future(task_id)

    def cancel_task(self, task_id: str) -> results.Result:
        """End a task without a result, and its agent; see RayScheduler.cancel_task."""
        return self.scheduler.cancel_task(task_id)
