"""Requests about tasks after their submission: wait for them, read their results, cancel them."""

from __future__ import annotations

from enum import Enum

from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.request_base import Names, Request, check_number

#: Seconds for which a request may wait for tasks; callers that wait for longer repeat it.
LONGEST_WAIT_S = 30.0


class CancelTask(Request, tag="cancel_task", frozen=True, kw_only=True):
    """Cancel a task, and terminate its agent unless that runs other tasks."""

    task_id: str
    request_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        parse_name(self.request_id, "request_id")


class WaitUntil(str, Enum):
    """How far a task that is waited for has to get."""

    RUNNING = "running"
    ENDED = "ended"


class WaitTasks(Request, tag="wait_tasks", frozen=True, kw_only=True):
    """Get the states of tasks, once enough of them have got so far or the time is over."""

    task_ids: Names
    until: WaitUntil
    #: How many of them are enough.
    enough: int
    #: Seconds.
    wait_s: float

    def __post_init__(self) -> None:
        check_number(self.task_ids, "task_ids")
        for task_id in self.task_ids:
            parse_name(task_id, "task_id")
        _check_wait(self.wait_s)


class GetResult(Request, tag="get_result", frozen=True, kw_only=True):
    """Get the result of a task, once it has ended or the time is over."""

    task_id: str
    #: Seconds.
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        _check_wait(self.wait_s)


def _check_wait(wait_s: float) -> None:
    """Raise InvalidRequestError for a time that no request may wait."""
    if not 0.0 <= wait_s <= LONGEST_WAIT_S:
        raise InvalidRequestError(f"a request waits for 0 to {LONGEST_WAIT_S:g} s, not {wait_s}")
