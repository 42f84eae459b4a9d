"""The calls of a scheduler object that follow tasks after their submission."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from schedulemesh.core.client import results, task_results, waiting
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.futures import TaskFuture, TaskFutures
from schedulemesh.core.client.lifecycle import SchedulerObject


@public_calls
class TaskFollower(SchedulerObject):
    """Waits for tasks, returns their results and cancels them."""

    @functools.cached_property
    def _futures(self) -> TaskFutures:
        return TaskFutures(self._connection)

    def wait(
        self,
        task_ids: str | Iterable[str],
        timeout: float | None = None,
        until: str = "ended",
        progress: bool = False,
    ) -> task_results.WaitResult:
        """Wait until tasks have ended, or (``until="running"``) run; for at most ``timeout`` seconds.

        Returns ``tasks`` (the state of each), ``done`` and ``pending`` (ids). With ``progress`` it shows how
        many are done: as a bar on a terminal or in a notebook, else as lines on standard error. An id that is
        not known is refused with ``task_not_found``.
        """
        return waiting.wait(self._connection, task_ids, timeout, until, progress)

    def result(self, task_id: str) -> task_results.TaskResultDict:
        """Return what a task that runs by itself has returned, as ``result``, once it has ended.

        Raises the exception that its run raised, with the traceback as its cause. Refused with
        ``task_not_ended``, ``task_cancelled``, ``task_lost``, ``result_expired`` or ``task_not_found``.
        """
        return waiting.result(self._connection, task_id)

    def future(self, task_id: str) -> TaskFuture:
        """A future of the task's result, which can be awaited, and used with ``concurrent.futures``."""
        return self._futures.of(task_id)

    def cancel_task(self, task_id: str) -> results.Result:
        """End a task without a result, and its agent; returns when its process has ended.

        An agent that runs other tasks stays (``detail`` "agent_kept"). A task that has ended before is a
        success with ``detail`` "already_ended".
        """
        return waiting.cancel_task(self._connection, task_id)
