"""Read what the processes of tasks have written, in pieces."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from schedulemesh.api.tasks import OfTask
from schedulemesh.api.values import Checked
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError, nearest

#: Bytes that one call may read.
MAX_PIECE = 1024 * 1024
#: What a process of an agent writes to; each has a log of its own. That of a job's driver is in one log.
STREAMS = ("stdout", "stderr")


def parse_stream(value: object) -> str:
    """Which of ``STREAMS``. Raises InvalidRequestError."""
    if not isinstance(value, str) or value not in STREAMS:
        raise InvalidRequestError(
            f"stream is {value!r}{nearest(str(value), STREAMS)}; allowed are {', '.join(STREAMS)}"
        )
    return value


def _check_stream(stream: str | None, _: str) -> None:
    if stream is not None:
        parse_stream(stream)


class ReadTaskLog(OfTask, tag="read_task_log", frozen=True, kw_only=True):
    """Read a part of what an attempt of a task has written: the driver of a job, or a process of an agent."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    #: None: the last attempt.
    attempt: int | None = None
    #: Of a gang: the member.
    rank: int = 0
    #: One of ``STREAMS``; None: "stdout", or of a job both.
    stream: Annotated[str | None, Checked(_check_stream)] = None
    #: The position of the first byte; negative: counted from the end.
    begin: int = 0
    #: The most bytes to read.
    limit: int = MAX_PIECE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.limit <= MAX_PIECE:
            raise InvalidRequestError(f"a request reads 1 to {MAX_PIECE} bytes, not {self.limit}")
        if self.attempt is not None and self.attempt < 1:
            raise InvalidRequestError(f"attempts are numbered from 1; {self.attempt} is none")
        if self.rank < 0:
            raise InvalidRequestError(f"ranks are numbered from 0; {self.rank} is none")


class TaskKey(msgspec.Struct, frozen=True, kw_only=True):
    """Whose log or checkpoints: the scheduler, the task, and the agent that all its attempts run on. Another
    task that is submitted under the same id later has another agent.
    """

    #: The folder that the folders of all jobs are in, on every node the same.
    root: str
    namespace: str
    scheduler: str
    task_id: str
    agent_name: str


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an attempt's log."""

    attempt: int
    #: Which start of the agent that was; 0: of a job, whose folders tell attempts apart.
    incarnation: int = 0
    #: The position of its first byte in all that the attempt has written; earlier bytes are no longer kept
    #: where it is above the one that was asked for.
    begin: int
    data: bytes
    #: How much the attempt has written up to now.
    end: int
    #: Whether all that it has written is no longer kept.
    removed: bool = False
