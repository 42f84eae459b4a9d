"""Runs tasks in an agent's process: each at most once, and its result is kept until the process ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
from ray import ObjectRef, cloudpickle

from schedulemesh.core.agent.user_errors import error_text
from schedulemesh.core.transport.user_code import BoundedFile, load_arguments
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.user_data import UserFunction, UserObject, UserValue
from schedulemesh.protocol.agents import (
    KeptResult,
    RunOrder,
    RunReport,
    exception_line,
    pack,
)

#: Bytes of a kept result beside the value and the traceback.
_ENVELOPE_BYTES = 64


class ResultTooLargeError(ValueError):
    """What a run returned takes more bytes than may be kept."""


class ReferenceInResultError(ValueError):
    """What a run returned holds an object reference."""


class TaskRuns:
    """The runs of tasks in this process. Several threads may use it."""

    def __init__(self, was_cancelled: Callable[[str], bool]) -> None:
        #: Whether the scheduler has cancelled a task.
        self._was_cancelled = was_cancelled
        self._lock = threading.Lock()
        self._reports: dict[str, Future[bytes]] = {}

    def claim(self, task_id: str) -> tuple[Future[bytes], bool]:
        """The future report of a task's run, and whether the caller is the first and has to run it."""
        with self._lock:
            first = task_id not in self._reports
            return self._reports.setdefault(task_id, Future()), first

    def report_of(self, task_id: str) -> bytes | None:
        """The packed report of a task's run that has ended; None: it has not, or was never ordered."""
        with self._lock:
            report = self._reports.get(task_id)
        return report.result() if report is not None and report.done() else None

    def call_of(self, order: RunOrder, built: UserObject) -> Callable[[], UserValue]:
        """The call that the task consists of, with its arguments. Raises whatever user code raises."""
        args, kwargs = (
            ((), {}) if order.arguments is None else load_arguments(order.arguments, (), ())
        )
        method: UserFunction = getattr(built, order.method)
        return lambda: method(*args, **kwargs)

    def returned(self, order: RunOrder, value: UserValue) -> bytes:
        """The packed report of a run that has returned."""
        try:
            result = KeptResult(value=_pickled(value, order.limit_bytes))
        except ResultTooLargeError as error:
            return self._failed(order, TaskEndReason.RESULT_TOO_LARGE, KeptResult(text=str(error)))
        except BaseException as error:  # noqa: BLE001  # pickling runs user code
            text = f"what {order.method}() returned cannot be kept: {error_text(error)}"
            return self._failed(order, TaskEndReason.RESULT_NOT_KEPT, KeptResult(text=text))
        return pack(RunReport(kept=pack(result), cancelled=self._was_cancelled(order.task_id)))

    def raised(self, order: RunOrder, error: BaseException) -> bytes:
        """The packed report of a run that has raised."""
        text = error_text(error)
        try:
            pickled = _pickled(error, order.limit_bytes - len(text.encode()))
        except BaseException:  # noqa: BLE001  # pickling runs user code; the text is kept
            pickled = None
        result = KeptResult(exception=pickled, text=text)
        return self._failed(order, TaskEndReason.RUN_RAISED, result)

    def _failed(self, order: RunOrder, reason: TaskEndReason, result: KeptResult) -> bytes:
        report = RunReport(
            kept=pack(result),
            reason=reason,
            error=exception_line(result.text),
            cancelled=self._was_cancelled(order.task_id),
        )
        return pack(report)


class _ResultPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # Ray ships no types
    """Refuses object references: what an agent owns in Ray's object store ends with the agent."""

    def persistent_id(self, value: UserValue) -> None:
        if isinstance(value, ObjectRef):
            raise ReferenceInResultError(
                "it holds an object reference, and the object ends with the agent; return the value, or "
                "write it to a file or an object store and return the address"
            )


def _pickled(value: UserValue, limit_bytes: int) -> bytes:
    """The value as bytes. Raises ResultTooLargeError, and whatever pickling raises."""
    too_large = ResultTooLargeError(
        f"the result takes more than {limit_bytes} bytes pickled, which is the most that is kept "
        "(JournalSettings.result_bytes). Write what is large to a file or an object store, and return its "
        "address"
    )
    file = BoundedFile(limit_bytes - _ENVELOPE_BYTES, too_large)
    _ResultPickler(file).dump(value)
    return file.data()


def decoded_order(order: bytes) -> RunOrder:
    """An order of the supervisor."""
    return msgspec.msgpack.decode(order, type=RunOrder)
