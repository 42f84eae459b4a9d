"""Futures of tasks: for ``concurrent.futures`` and ``asyncio``."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Generator
from concurrent.futures import Future
from typing import cast

from ray import cloudpickle
from ray.exceptions import RayError

from schedulemesh.api.tasks import LONGEST_WAIT_S, GetResult
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.task_results import value_of
from schedulemesh.client.tasks import cancel_task
from schedulemesh.core.client.connection import Connection
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import SchedulerUnavailableError, TaskFailedError
from schedulemesh.protocol.answers import TaskResult, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.agents.references import NO_REFS


class TaskFuture(Future[UserValue]):
    """The result of a task, when it has ended: what its run returned, or the exception that it raised.

    It works with ``concurrent.futures.wait`` and ``as_completed``, and can be awaited. Cancelling it cancels
    the task; cancelling an ``await`` of it, or letting its time run out, does not. A task that was cancelled
    raises CancelledError, and one that was lost TaskFailedError.
    """

    def __init__(self, connection: Connection, task_id: str) -> None:
        super().__init__()
        self.task_id = task_id
        self._connection = connection

    def cancel(self) -> bool:
        """Cancel the task; False: it had ended before, or cannot be cancelled now."""
        if self.done():
            return self.cancelled()
        answer = cancel_task(self._connection, self.task_id)
        if not answer["success"] or "detail" in answer:
            return False
        return super().cancel()

    def note_cancelled(self) -> None:
        """The task was cancelled."""
        super().cancel()

    def __await__(self) -> Generator[object, None, UserValue]:
        return asyncio.shield(asyncio.wrap_future(self)).__await__()


class TaskFutures:
    """Makes the futures of one connection, and completes them on one thread, which exists while there are
    any that are not done. Each has one request open at the supervisor.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._open = 0
        #: A future, and the supervisor's answer to its request.
        self._answers: queue.SimpleQueue[tuple[TaskFuture, Future[object]]] = queue.SimpleQueue()

    def of(self, task_id: object) -> TaskFuture:
        """The future of a task, which need not have started yet."""
        future = TaskFuture(self._connection, parse_name(task_id, "task_id"))
        self._ask(future)
        with self._lock:
            self._open += 1
            if self._open == 1:
                threading.Thread(target=self._serve, name="task futures", daemon=True).start()
        return future

    def _ask(self, future: TaskFuture) -> None:
        request = GetResult(task_id=future.task_id, wait_s=LONGEST_WAIT_S)
        connection = self._connection
        ref = connection.handle.ask.remote(encode_request(request), NO_REFS, connection.credential)
        answer = cast("Future[object]", ref.future())
        answer.add_done_callback(lambda done: self._answers.put((future, done)))

    def _serve(self) -> None:
        """Complete futures until there are none left."""
        while True:
            future, answer = self._answers.get()
            if self._completes(future, answer):
                with self._lock:
                    self._open -= 1
                    if not self._open:
                        return

    def _completes(self, future: TaskFuture, answer: Future[object]) -> bool:
        """Complete a future with an answer; False: its task has not ended, and was asked about again."""
        try:
            outcome = decode_answer(cast("bytes", answer.result()), TaskResult)
            if isinstance(outcome, Refused) and outcome.reason is Reason.TASK_NOT_ENDED:
                if not future.done():
                    self._ask(future)
                    return False
                return True
            _complete(future, outcome)
        except RayError as error:
            name = self._connection.settings.name
            _fail(future, SchedulerUnavailableError(f"scheduler {name!r} cannot be asked: {error}"))
        except BaseException as error:  # noqa: BLE001  # the caller's to handle
            _fail(future, error)
        return True


@public_calls
class FutureCalls(SchedulerObject):
    """A scheduler object that makes futures of tasks."""

    _connection: Connection

    @functools.cached_property
    def _futures(self) -> TaskFutures:
        return TaskFutures(self._connection)

    def future(self, task_id: str) -> TaskFuture:
        """A future of the task's result, which can be awaited, and used with ``concurrent.futures``."""
        return self._futures.of(task_id)


def _complete(future: TaskFuture, outcome: TaskResult | Refused) -> None:
    """Raises what the run raised."""
    if future.done():
        return
    if not isinstance(outcome, Refused):
        future.set_result(value_of(future.task_id, outcome, cloudpickle.loads))
    elif outcome.reason is Reason.TASK_CANCELLED:
        future.note_cancelled()
    else:
        raise TaskFailedError(outcome.error, future.task_id, outcome.reason)


def _fail(future: TaskFuture, error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
