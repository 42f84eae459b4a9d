"""The states and results of tasks as callers see them; results are loaded in the caller's process."""

from __future__ import annotations

import msgspec

from schedulemesh.api.results import Result
from schedulemesh.api.tasks import GetResult
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import ask
from schedulemesh.client.pickling import Load, Pickling
from schedulemesh.client.results import combined
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import ResultNotLoadableError, TaskFailedError, shown
from schedulemesh.protocol.agents import KeptResult
from schedulemesh.protocol.answers import TaskResult
from schedulemesh.protocol.public import refused


class TaskResultDict(Result, total=False):
    """The answer of ``result``."""

    task_id: str
    state: str
    #: What the task's run returned.
    result: UserValue


@public_calls
class ResultCalls(SchedulerObject):
    """A scheduler object that loads the results of tasks."""

    _pickling: Pickling

    def result(self, task_id: str) -> TaskResultDict:
        """Return what a task that runs by itself has returned, as ``result``, once it has ended.

        Raises the exception that its run raised, with the traceback as its cause. Refused with
        ``task_not_ended``, ``task_cancelled``, ``task_lost``, ``result_expired`` or ``task_not_found``. Over
        HTTP plain data is loaded, and the exceptions of Python and of ScheduleMesh; another result raises
        ResultNotLoadableError.
        """
        name = parse_name(task_id, "task_id")
        answer = ask(self._connection, GetResult(task_id=name), TaskResult)
        return result_of(name, answer, self._pickling.load_result)


def result_of(task_id: str, answer: TaskResult | Refused, load: Load) -> TaskResultDict:
    """The public result of a task. Raises what its run raised; see ``value_of``."""
    if isinstance(answer, Refused):
        return combined(TaskResultDict, refused(answer))
    value = value_of(task_id, answer, load)
    return {"success": True, "task_id": task_id, "state": answer.state, "result": value}


def value_of(task_id: str, answer: TaskResult, load: Load) -> UserValue:
    """What a task's run has returned; of a gang the list of what each member has, in the order of ranks; None
    where its caller completed it. ``load``: loads what was pickled.

    Raises what the run raised, with its traceback as the cause; TaskFailedError where that is not kept,
    cannot be loaded here, or would end this process or an iteration; ResultNotLoadableError for a result that
    cannot be loaded here.
    """
    if answer.kept is None:
        if answer.error:
            raise TaskFailedError(f"task {task_id!r} failed: {answer.error}", task_id)
        return None
    result = msgspec.msgpack.decode(answer.kept, type=KeptResult)
    if result.value is None and not result.members:
        raise _raised(task_id, result, load)
    try:
        if result.members:
            return [load(value) for value in result.members]
        return None if result.value is None else load(result.value)
    except Exception as error:
        raise ResultNotLoadableError(
            f"the result of task {task_id!r} is kept, but cannot be loaded in this process: {shown(error)}. "
            "Make the module of its class importable here, or return plain values"
        ) from error


def _raised(task_id: str, result: KeptResult, load: Load) -> Exception:
    """The exception to raise for a run that raised."""
    failed = TaskFailedError(f"task {task_id!r} failed:\n{result.text}", task_id)
    if result.exception is None:
        return failed
    try:
        error = load(result.exception)
    except Exception as problem:  # noqa: BLE001  # unpickling runs user code; the text tells
        note = f"(its exception cannot be loaded in this process: {shown(problem)})"
        return TaskFailedError(f"{failed} {note}", task_id)
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        # SystemExit and the like would end this process; StopIteration a loop that asks for results, and
        # a future that raises it is never done for those who await it.
        return failed
    error.__cause__ = failed
    return error
