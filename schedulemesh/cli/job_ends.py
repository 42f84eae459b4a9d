"""A command that waits for a job: why the job still waits, and its end as the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from schedulemesh.api.tasks import LONGEST_WAIT_S, GetResult, WaitTasks, WaitUntil
from schedulemesh.cli.columns import waits_because
from schedulemesh.cli.command import note
from schedulemesh.cli.exits import RefusedError
from schedulemesh.cli.gateway import Gateway
from schedulemesh.cli.language import phrase
from schedulemesh.cli.rows import Row
from schedulemesh.client.pickling import load_plain
from schedulemesh.client.task_results import value_of
from schedulemesh.domain.reasons import Reason
from schedulemesh.errors import JobFailedError, TaskFailedError
from schedulemesh.protocol.answers import Listed, TaskResult
from schedulemesh.protocol.patience import until_answered

#: What a shell adds to the number of a signal that has ended a process.
_SIGNALLED = 128
#: Seconds between two looks at a job that waits.
_LOOK_S = 2.0


class QueueNotes:
    """Says on stderr why a job waits in the queue, and each change of that once."""

    def __init__(self, gateway: Gateway, task_id: str) -> None:
        self._gateway, self._task_id = gateway, task_id
        self._last = ""
        #: The time before which nothing is asked, on the monotonic clock.
        self._next_at = 0.0

    def until_started(self) -> None:
        """Return when the job waits in the queue no more."""
        while self._look(_LOOK_S):
            pass

    def seen(self, state: str) -> None:
        """Called often with the state of the job: looks every few seconds while it waits."""
        if state != "queued" and not self._last:
            return
        if (now := time.monotonic()) >= self._next_at:
            self._next_at = now + _LOOK_S
            self._look(0.0)

    def _look(self, wait_s: float) -> bool:
        """Whether the job waits, ``wait_s`` seconds from now or once it has started."""
        request = WaitTasks(
            task_ids=(self._task_id,), until=WaitUntil.RUNNING, enough=1, wait_s=wait_s
        )
        if not self._last:
            request = msgspec.structs.replace(request, wait_s=0.0)
        task: Row
        (task,) = until_answered(lambda: self._gateway.ask(request, Listed)).rows
        is_queued: bool = task["state"] == "queued"
        sentence = waits_as(task) if is_queued else task["state"]
        if sentence != self._last and (is_queued or self._last):
            note(sentence)
        self._last = sentence if is_queued else ""
        return is_queued


def waits_as(task: Row) -> str:
    """Why a task waits, such as ``queued, 2 of 5: insufficient_quota, gpu 4 short``."""
    return phrase(
        "job_waits",
        position=task["position"],
        length=task["queue_length"],
        reason=waits_because(task),
    )


def exit_code(gateway: Gateway, task_id: str, waiting: Callable[[], None] = lambda: None) -> int:
    """Wait for the end of a job: its driver's exit code. A scheduler that restarts is waited for.
    ``waiting``: returns when the job waits in the queue no more.
    """
    request = GetResult(task_id=task_id, wait_s=LONGEST_WAIT_S)
    while True:
        waiting()
        try:
            result = until_answered(lambda: gateway.ask(request, TaskResult))
            value_of(task_id, result, load_plain)
        except JobFailedError as error:
            note(str(error))
            return error.exit_code if error.exit_code > 0 else _SIGNALLED - error.exit_code
        except TaskFailedError as error:
            note(str(error))  # not all members of an array were completed
            return 1
        except RefusedError as error:
            if error.reason is not Reason.TASK_NOT_ENDED:
                raise
        except Exception as error:
            if not isinstance(error.__cause__, TaskFailedError):
                raise
            # The runner has failed, not the driver: for example it may not write the folders of the job.
            note(
                phrase("job_runner_failed", task=task_id, error=f"{type(error).__name__}: {error}")
            )
            return 1
        else:
            return 0
