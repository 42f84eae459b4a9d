"""Task calls after a submission: wait, read results, cancel. RayScheduler documents each call."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from schedulemesh.api.tasks import LONGEST_WAIT_S, CancelTask, GetResult, WaitTasks, WaitUntil
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.core.client import results
from schedulemesh.core.client.asking import ask, respond
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.progress import NoDisplay, display
from schedulemesh.core.client.results import combined
from schedulemesh.core.client.task_results import (
    TaskResultDict,
    TaskStatus,
    WaitResult,
    result_of,
)
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import MAX_DURATION_S, parse_duration, parse_flag
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.answers import Listed, TaskResult

#: Seconds between two updates of a progress display while nothing ends.
_REFRESH_S = 5.0

_BEFORE_RUNNING = ("queued", "starting")


def wait(
    connection: Connection, task_ids: object, timeout: object, until: object, progress: object
) -> WaitResult:
    """Wait until tasks run or have ended."""
    ids = _ids(task_ids)
    how_far = _until(until)
    limit_s = MAX_DURATION_S if timeout is None else parse_duration(timeout, "timeout")
    shows = parse_flag(progress, "progress")
    deadline = time.monotonic() + limit_s
    done: list[str] = []
    with display(len(ids), how_far.value) if shows else NoDisplay() as shown_progress:
        # What is not known is refused at once, also where there are several requests.
        longest_s = 0.0 if len(ids) > MAX_NAMES else _REFRESH_S if shows else LONGEST_WAIT_S
        while True:
            statuses: list[TaskStatus] = []
            for part in (ids[i : i + MAX_NAMES] for i in range(0, max(len(ids), 1), MAX_NAMES)):
                reached = len(set(part).intersection(done))
                request = WaitTasks(
                    task_ids=part,
                    until=how_far,
                    enough=reached + 1 if shows else len(part),
                    wait_s=min(max(0.0, deadline - time.monotonic()), longest_s),
                )
                answer = ask(connection, request, Listed)
                if isinstance(answer, Refused):
                    return combined(WaitResult, results.refused(answer))
                statuses += [combined(TaskStatus, row) for row in answer.rows]
            longest_s = _REFRESH_S if shows else LONGEST_WAIT_S
            done = [status["task_id"] for status in statuses if _has_reached(status, how_far)]
            shown_progress.show([status["state"] for status in statuses], len(done))
            if len(done) == len(ids) or time.monotonic() >= deadline:
                break
    pending = [task_id for task_id in ids if task_id not in set(done)]
    return {"success": True, "tasks": statuses, "done": done, "pending": pending}


def result(connection: Connection, task_id: object) -> TaskResultDict:
    """What a task that has ended returned."""
    name = parse_name(task_id, "task_id")
    return result_of(name, ask(connection, GetResult(task_id=name), TaskResult))


def cancel_task(connection: Connection, task_id: object) -> results.Result:
    """End a task without a result."""
    request = CancelTask(task_id=parse_name(task_id, "task_id"), request_id=uuid.uuid4().hex)
    return results.done(respond(connection, request).outcome)


def _has_reached(status: TaskStatus, until: WaitUntil) -> bool:
    """Whether a task has ended or, where that is waited for, runs."""
    state = status["state"]
    return state in ENDED_STATES or (until is WaitUntil.RUNNING and state not in _BEFORE_RUNNING)


def _ids(given: object) -> tuple[str, ...]:
    """Task ids, each once: of one task, or a list."""
    name = as_text(given)
    elements: Sequence[object] = (
        (name,) if name is not None else tuple(as_elements(given, "task_ids", "a list of ids"))
    )
    return tuple(dict.fromkeys(parse_name(element, "task_id") for element in elements))


def _until(given: object) -> WaitUntil:
    text = as_text(given)
    if text not in tuple(WaitUntil):
        allowed = " or ".join(repr(until.value) for until in WaitUntil)
        raise InvalidRequestError(f"until must be {allowed}, not {shown(given)}")
    return WaitUntil(text)
