"""The calls that return what tasks have returned."""

from __future__ import annotations

import functools

from ray import cloudpickle

from schedulemesh.api.tasks import GetResult
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import ask
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.task_results import TaskResultDict, result_of
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.futures import TaskFuture, TaskFutures
from schedulemesh.domain.names import parse_name
from schedulemesh.protocol.answers import TaskResult


@public_calls
class ResultCalls(SchedulerObject):
    """A scheduler object that loads the results of tasks."""

    _connection: Connection

    @functools.cached_property
    def _futures(self) -> TaskFutures:
        return TaskFutures(self._connection)

    def result(self, task_id: str) -> TaskResultDict:
        """Return what a task that runs by itself has returned, as ``result``, once it has ended.

        Raises the exception that its run raised, with the traceback as its cause. Refused with
        ``task_not_ended``, ``task_cancelled``, ``task_lost``, ``result_expired`` or ``task_not_found``.
        """
        name = parse_name(task_id, "task_id")
        answer = ask(self._connection, GetResult(task_id=name), TaskResult)
        return result_of(name, answer, cloudpickle.loads)

    def future(self, task_id: str) -> TaskFuture:
        """A future of the task's result, which can be awaited, and used with ``concurrent.futures``."""
        return self._futures.of(task_id)
