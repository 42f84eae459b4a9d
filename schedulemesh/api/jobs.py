"""Jobs: list them, and read the logs of their drivers, in pieces."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.tasks import OfTask
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError

#: Bytes that one call may read.
MAX_PIECE = 1024 * 1024


class ListJobs(Call, tag="list_jobs", frozen=True, kw_only=True):
    """List the jobs that wait, run, or have ended lately."""


class ReadJobLog(OfTask, tag="read_job_log", frozen=True, kw_only=True):
    """Read a part of what the driver of an attempt has written."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    #: None: the last attempt.
    attempt: int | None = None
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


class JobKey(msgspec.Struct, frozen=True, kw_only=True):
    """Which job: the scheduler, the task, and the agent that all its attempts run on. Another job that is
    submitted under the same id later has another agent.
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
    #: The position of its first byte in all that the attempt has written; earlier bytes are no longer kept
    #: where it is above the one that was asked for.
    begin: int
    data: bytes
    #: How much the attempt has written up to now.
    end: int
