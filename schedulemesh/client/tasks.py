"""The calls that follow tasks after their submission: complete, cancel, list, explain, and wait for them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from schedulemesh.api.arrays import GetArray
from schedulemesh.api.results import ExplainResult, Result
from schedulemesh.api.tasks import (
    LONGEST_WAIT_S,
    CancelTask,
    CompleteTask,
    ExplainTask,
    ListTasks,
    TaskStatus,
    WaitTasks,
    WaitUntil,
)
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.client.arguments import parse_ids, public_calls
from schedulemesh.client.asking import (
    SchedulerConnection,
    ask,
    details,
    done,
    listed_all,
    logged,
    with_ids,
)
from schedulemesh.client.listings import ArrayResult, TasksResult
from schedulemesh.client.progress import NoDisplay, display
from schedulemesh.client.results import combined
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.arrays import MAX_INDEX
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import MAX_DURATION_S, parse_count, parse_duration, parse_flag
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.answers import Explained, Listed
from schedulemesh.protocol.public import explained, refused

#: Seconds between two updates of a progress display while nothing ends.
_REFRESH_S = 5.0

_BEFORE_RUNNING = ("queued", "starting")


class WaitResult(Result, total=False):
    """The answer of ``wait``."""

    #: In the order of the call.
    tasks: list[TaskStatus]
    #: The ids of the tasks that have got so far, and of the others.
    done: list[str]
    pending: list[str]


@public_calls
class TaskCalls(SchedulerObject):
    """A scheduler object that follows tasks to their ends."""

    def complete_task(self, task_id: str, end_agent: bool = False) -> Result:
        """Report that a task is done. ``end_agent`` also ends its agent and frees the quota.

        An agent that runs other tasks stays (``detail`` "agent_kept"); a job and a lease end with their task
        in any case. Returns when the process has ended.
        """
        request = CompleteTask(
            task_id=parse_name(task_id, "task_id"),
            end_agent=parse_flag(end_agent, "end_agent"),
            request_id=uuid.uuid4().hex,
        )
        return logged("complete_task", done(self._connection, request))

    def list_tasks(self, task_ids: str | Iterable[str] | None = None) -> TasksResult:
        """Return ``tasks``: every task (or those with these ids that run or wait) with its agent, pool,
        priority, labels, phase, start time, estimated and remaining duration (seconds), and last metrics.
        """
        ids = None if task_ids is None else parse_ids(task_ids, "task_ids")
        requests = with_ids(ListTasks(), "task_ids", ids)
        return listed_all(self._connection, requests, "tasks", TasksResult)

    def array(
        self, task_id: str, state: str | None = None, limit: int = 100, after: int | None = None
    ) -> ArrayResult:
        """Return how an array stands: how many of its members wait, run and have ended in which way, which
        were ``not_completed``, and ``members``, the first ``limit`` in the order of their indices.

        ``state`` chooses those that are "queued", "running", "completed", "failed", "cancelled" or "lost".
        ``after`` is the index after which the list begins: for the next page, ``next`` of this one.
        """
        request = GetArray(
            task_id=parse_name(task_id, "task_id"),
            state=None if state is None else as_text(state) or shown(state),
            limit=parse_count(limit, "limit"),
            after=None if after is None else parse_count(after, "after", most=MAX_INDEX),
        )
        return details(self._connection, request, ArrayResult)

    def explain(self, task_id: str) -> ExplainResult:
        """Say why a task waits, where it runs, by whom it was evicted or how it ended.

        The answer has ``state`` and, where the task does not run, one dominant ``reason`` with ``error`` (a
        sentence) and ``hint`` (the next step); all ``others`` behind it; of a queued task its ``position``,
        what is ``short`` and the ``holders`` of it, which victims were ``considered``, and the
        ``earliest_start`` if estimates hold (None: see ``no_estimate``); and the last ``eviction``.
        An unknown id is refused with ``task_not_found``, naming the nearest ones.
        """
        answer = ask(
            self._connection, ExplainTask(task_id=parse_name(task_id, "task_id")), Explained
        )
        if isinstance(answer, Refused):
            return combined(ExplainResult, refused(answer))
        return explained(answer.explanation)

    def wait(
        self,
        task_ids: str | Iterable[str],
        timeout: float | None = None,
        until: str = "ended",
        progress: bool = False,
    ) -> WaitResult:
        """Wait until tasks have ended, or (``until="running"``) run; for at most ``timeout`` seconds.

        Returns ``tasks`` (the state of each), ``done`` and ``pending`` (ids). With ``progress`` it shows how
        many are done: as a bar on a terminal or in a notebook, else as lines on standard error. An id that is
        not known is refused with ``task_not_found``.
        """
        ids = parse_ids(task_ids, "task_ids")
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
                    answer = ask(self._connection, request, Listed)
                    if isinstance(answer, Refused):
                        return combined(WaitResult, refused(answer))
                    statuses += [combined(TaskStatus, row) for row in answer.rows]
                longest_s = _REFRESH_S if shows else LONGEST_WAIT_S
                done = [status["task_id"] for status in statuses if _has_reached(status, how_far)]
                shown_progress.show([status["state"] for status in statuses], len(done))
                if len(done) == len(ids) or time.monotonic() >= deadline:
                    break
        pending = [task_id for task_id in ids if task_id not in set(done)]
        return {"success": True, "tasks": statuses, "done": done, "pending": pending}

    def cancel_task(self, task_id: str) -> Result:
        """End a task without a result, and its agent; returns when its process has ended.

        An agent that runs other tasks stays (``detail`` "agent_kept"). A task that has ended before is a
        success with ``detail`` "already_ended".
        """
        return cancel_task(self._connection, task_id)


def cancel_task(connection: SchedulerConnection, task_id: object) -> Result:
    """End a task without a result."""
    request = CancelTask(task_id=parse_name(task_id, "task_id"), request_id=uuid.uuid4().hex)
    return done(connection, request)


def _has_reached(status: TaskStatus, until: WaitUntil) -> bool:
    """Whether a task has ended or, where that is waited for, runs."""
    state = status["state"]
    return state in ENDED_STATES or (until is WaitUntil.RUNNING and state not in _BEFORE_RUNNING)


def _until(until: object) -> WaitUntil:
    text = as_text(until)
    if text not in tuple(WaitUntil):
        allowed = " or ".join(repr(one.value) for one in WaitUntil)
        raise InvalidRequestError(f"until must be {allowed}, not {shown(until)}")
    return WaitUntil(text)
