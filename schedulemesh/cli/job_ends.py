"""The end of a job as the exit code of a command that waits for it."""

from __future__ import annotations

from schedulemesh.cli.command import note
from schedulemesh.cli.exits import RefusedError
from schedulemesh.cli.gateway import Gateway
from schedulemesh.core.client.task_results import value_of
from schedulemesh.domain.reasons import Reason
from schedulemesh.errors import JobFailedError
from schedulemesh.protocol.answers import TaskResult
from schedulemesh.protocol.patience import until_answered
from schedulemesh.protocol.task_requests import LONGEST_WAIT_S, GetResult

#: What a shell adds to the number of a signal that has ended a process.
_SIGNALLED = 128


def exit_code(gateway: Gateway, task_id: str) -> int:
    """Wait for the end of a job: its driver's exit code. A scheduler that restarts is waited for."""
    request = GetResult(task_id=task_id, wait_s=LONGEST_WAIT_S)
    while True:
        try:
            found = until_answered(lambda: gateway.ask(request, TaskResult))
            value_of(task_id, found)
        except JobFailedError as error:
            note(str(error))
            return error.exit_code if error.exit_code > 0 else _SIGNALLED - error.exit_code
        except RefusedError as error:
            if error.reason is not Reason.TASK_NOT_ENDED:
                raise
        else:
            return 0
