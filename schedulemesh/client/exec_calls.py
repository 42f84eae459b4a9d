"""The call that runs a command inside the claim of a task."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Sequence

from schedulemesh.api.call import Call
from schedulemesh.api.exec_sessions import StartExec
from schedulemesh.api.results import Result
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import ask
from schedulemesh.client.results import combined
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_count, parse_duration
from schedulemesh.domain.placement import MAX_BUNDLES
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, ScheduleMeshError, shown
from schedulemesh.protocol.answers import AnswerT
from schedulemesh.protocol.exec_messages import STDERR, STDOUT
from schedulemesh.protocol.exec_reader import ExecReader
from schedulemesh.protocol.public import refused

#: Bytes of each stream that are kept; the command line passes on all.
MAX_KEPT = 16 * 1024 * 1024


class ExecResult(Result, total=False):
    """The answer of ``exec_in_task``."""

    #: As a shell says it: 128 more than the signal that has ended it.
    exit_code: int
    stdout: str
    stderr: str
    #: Whether a stream had more than 16 MB, of which the beginning is kept.
    truncated: bool


@public_calls
class ExecCalls(SchedulerObject):
    """A scheduler object that runs commands inside claims."""

    def exec_in_task(
        self,
        task_id: str,
        command: Sequence[str],
        timeout: float | None = None,
        rank: int = 0,
    ) -> ExecResult:
        """Run a command beside the process of a running task, such as ``["nvidia-smi"]``, and wait for its
        end.

        That process is the driver of a job, an agent, or the member of a gang with this ``rank``. The
        command runs on its node, in its environment and its folder, sees the same GPUs, and ends with it. In
        a lease it runs on the node of the first bundle. Returns ``exit_code``, ``stdout`` and
        ``stderr``. After ``timeout`` seconds it is ended, and TimeoutError raised. Refused with
        ``commands_off`` unless the policy has ``allow_exec``, and with ``task_not_running`` while it does
        not run, or where it ends first.
        """
        request = StartExec(
            task_id=parse_name(task_id, "task_id"),
            command=_parse_command(command),
            rank=parse_count(rank, "rank", 0, MAX_BUNDLES),
            request_id=uuid.uuid4().hex,
        )
        limit_s = None if timeout is None else parse_duration(timeout, "timeout")
        try:
            return _ended(ExecReader(self._asked, request), limit_s)
        except _RefusedError as error:
            return combined(ExecResult, refused(error.refused))

    def _asked(self, request: Call, expected: type[AnswerT]) -> AnswerT:
        answer = ask(self._connection, request, expected)
        if isinstance(answer, Refused):
            raise _RefusedError(answer)
        return answer


class _RefusedError(ScheduleMeshError):
    """A request about a command was refused."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.error)
        self.refused = refusal


def _ended(reader: ExecReader, limit_s: float | None) -> ExecResult:
    """How a command ended, with what it has written. Raises TimeoutError where that takes too long."""
    until = None if limit_s is None else time.monotonic() + limit_s
    written: defaultdict[int, bytearray] = defaultdict(bytearray)
    is_truncated = False
    for stream, data in reader.pieces(until):
        room = MAX_KEPT - len(written[stream])
        is_truncated = is_truncated or len(data) > room
        written[stream] += data[:room]
    end = reader.end
    if end is None:
        reader.stop()
        raise TimeoutError(f"the command has not ended within {limit_s:g} s, and was ended")
    if end.exit_code is None or end.error:
        raise _RefusedError(Refused(reason=Reason.TASK_NOT_RUNNING, error_text=end.error))
    return {
        "success": True,
        "exit_code": end.exit_code,
        "stdout": written[STDOUT].decode("utf-8", "replace"),
        "stderr": written[STDERR].decode("utf-8", "replace"),
        "truncated": is_truncated,
    }


def _parse_command(command: object) -> tuple[str, ...]:
    if as_text(command) is not None:
        raise InvalidRequestError(
            f"command is {shown(command)}; it is a list of words, such as ['nvidia-smi', '-L'], or "
            "['sh', '-c', '...'] for what a shell is to read"
        )
    words = [as_text(word) for word in as_elements(command, "command", "a list of words")]
    if None in words:
        raise InvalidRequestError(f"command is {shown(command)}; each of its words is a text")
    return tuple(word for word in words if word is not None)
