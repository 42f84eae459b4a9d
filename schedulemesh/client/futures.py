"""Futures of tasks: for ``concurrent.futures`` and ``asyncio``."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Protocol

from schedulemesh.api.tasks import GetResult, WaitTasks, WaitUntil
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import SchedulerConnection, ask
from schedulemesh.client.pickling import Load, Pickling
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.task_results import value_of
from schedulemesh.client.tasks import cancel_task
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import TaskFailedError
from schedulemesh.protocol.answers import Listed, TaskResult
from schedulemesh.protocol.patience import until_answered

#: Seconds for which one request waits for the tasks of all futures: a new future joins the next one.
_REQUEST_S = 1.0


class TaskFuture(Future[UserValue]):
    """The result of a task, when it has ended: what its run returned, or the exception that it raised.

    It works with ``concurrent.futures.wait`` and ``as_completed``, and can be awaited. Cancelling it cancels
    the task; cancelling an ``await`` of it, or letting its time run out, does not. A task that was cancelled
    raises CancelledError, and one that was lost TaskFailedError.
    """

    def __init__(self, connection: SchedulerConnection, task_id: object) -> None:
        super().__init__()
        self.task_id = parse_name(task_id, "task_id")
        self._connection = connection

    def cancel(self) -> bool:
        """Cancel the task; False: it had ended before, or cannot be cancelled now."""
        if self.done():
            return self.cancelled()
        answer = cancel_task(self._connection, self.task_id)
        if not answer["success"] or "detail" in answer:
            return False
        return super().cancel()

    def complete(self, outcome: TaskResult | Refused, load: Load) -> bool:
        """Complete it with the answer about its task; False: the task has not ended. ``load``: loads what was
        pickled. Raises what the run raised.
        """
        if self.done():
            return True
        if not isinstance(outcome, Refused):
            self.set_result(value_of(self.task_id, outcome, load))
        elif outcome.reason is Reason.TASK_NOT_ENDED:
            return False
        elif outcome.reason is Reason.TASK_CANCELLED:
            super().cancel()
        else:
            raise TaskFailedError(outcome.error, self.task_id, outcome.reason)
        return True

    def fail(self, error: BaseException) -> None:
        """Complete it with an exception, unless it is done."""
        if not self.done():
            self.set_exception(error)

    def __await__(self) -> Generator[object, None, UserValue]:
        return asyncio.shield(asyncio.wrap_future(self)).__await__()


class Futures(Protocol):
    """Makes the futures of one connection."""

    def future_of(self, task_id: object) -> TaskFuture:
        """The future of a task, which need not have started yet."""


class PolledFutures:
    """Makes the futures of one connection, and completes them on one thread, which exists while there are any
    that are not done. It has one request open, for the tasks of all of them.
    """

    def __init__(self, connection: SchedulerConnection, load: Load) -> None:
        self._connection, self._load = connection, load
        self._lock = threading.Lock()
        #: Those that were not done when the thread looked last; it ends when there are none.
        self._open: list[TaskFuture] = []

    def future_of(self, task_id: object) -> TaskFuture:
        """The future of a task, which need not have started yet."""
        future = TaskFuture(self._connection, task_id)
        with self._lock:
            self._open.append(future)
            if len(self._open) == 1:
                threading.Thread(target=self._follow, name="task futures", daemon=True).start()
        return future

    def _follow(self) -> None:
        """Complete futures until there are none left."""
        while futures := self._not_done():
            parts = [futures[i : i + MAX_NAMES] for i in range(0, len(futures), MAX_NAMES)]
            for part in parts:
                self._complete_ended(part, _REQUEST_S / len(parts))

    def _not_done(self) -> list[TaskFuture]:
        with self._lock:
            self._open = [future for future in self._open if not future.done()]
            return list(self._open)

    def _complete_ended(self, futures: Sequence[TaskFuture], wait_s: float) -> None:
        """Complete those of which the task has ended, or ends within these seconds."""
        ids = dict.fromkeys(future.task_id for future in futures)
        request = WaitTasks(task_ids=tuple(ids), until=WaitUntil.ENDED, enough=1, wait_s=wait_s)
        try:
            answer = until_answered(lambda: ask(self._connection, request, Listed))
        except BaseException as error:  # noqa: BLE001  # the callers' to handle
            for future in futures:
                future.fail(error)
            return
        if not isinstance(answer, Refused):
            ids = {str(row["task_id"]): None for row in answer.rows if row["state"] in ENDED_STATES}
        # Otherwise one of them is not known, and each is asked about alone.
        for future in futures:
            if future.task_id in ids:
                self._complete(future, wait_s / len(futures))

    def _complete(self, future: TaskFuture, wait_s: float) -> None:
        request = GetResult(task_id=future.task_id, wait_s=wait_s)
        try:
            answer = until_answered(lambda: ask(self._connection, request, TaskResult))
            future.complete(answer, self._load)
        except BaseException as error:  # noqa: BLE001  # the caller's to handle
            future.fail(error)


@public_calls
class FutureCalls(SchedulerObject):
    """A scheduler object that makes futures of tasks."""

    _pickling: Pickling

    @functools.cached_property
    def _futures(self) -> Futures:
        return PolledFutures(self._connection, self._pickling.load_result)

    def future(self, task_id: str) -> TaskFuture:
        """A future of the task's result, which can be awaited, and used with ``concurrent.futures``."""
        return self._futures.future_of(task_id)
