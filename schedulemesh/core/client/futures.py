"""Futures of tasks over Ray, each with a request of its own."""

from __future__ import annotations

import functools
import queue
import threading
from concurrent.futures import Future
from typing import cast

from ray import cloudpickle
from ray.exceptions import RayError

from schedulemesh.api.tasks import LONGEST_WAIT_S, GetResult
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.futures import FutureCalls, TaskFuture
from schedulemesh.core.client.connection import Connection
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import TaskResult, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.agents.references import NO_REFS


class RayFutures:
    """Makes the futures of one connection, and completes them on one thread, which exists while there are
    any that are not done. Each has one request open at the supervisor.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._open = 0
        #: A future, and the supervisor's answer to its request.
        self._answers: queue.SimpleQueue[tuple[TaskFuture, Future[object]]] = queue.SimpleQueue()

    def future_of(self, task_id: object) -> TaskFuture:
        """The future of a task, which need not have started yet."""
        future = TaskFuture(self._connection, task_id)
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
            if not future.complete(outcome, cloudpickle.loads):
                self._ask(future)
                return False
        except RayError as error:
            name = self._connection.settings.name
            future.fail(SchedulerUnavailableError(f"scheduler {name!r} cannot be asked: {error}"))
        except BaseException as error:  # noqa: BLE001  # the caller's to handle
            future.fail(error)
        return True


@public_calls
class RayFutureCalls(FutureCalls):
    """A scheduler object that makes futures of tasks over Ray."""

    _connection: Connection

    @functools.cached_property
    def _futures(self) -> RayFutures:
        return RayFutures(self._connection)
