"""Jobs: list them, and read the logs of their drivers, in pieces."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.routes import ListRoute
from schedulemesh.api.rows import NameOf, OneOf
from schedulemesh.api.tasks import PHASES, OfTask, TaskInfo
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.task import EndState
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError

#: Bytes that one call may read.
MAX_PIECE = 1024 * 1024


class JobListing(TaskInfo, total=False):
    """A job as ``jobs`` lists it."""

    #: As in TaskStatus.
    state: Annotated[str, OneOf(*PHASES, *EndState)]
    #: The number of its present attempt, or of the last one.
    attempt: int
    #: Its claim.
    resources: Amounts
    #: The Ray job that was adopted as this task; absent: its driver was started by the scheduler.
    ray_job_id: str
    #: Of one that waits: its place in the queue of its pool, and whether it is held.
    position: int
    held: bool
    #: Of one that waits: among how many of its pool, for how many seconds; see QueueListing.
    queue_length: int
    waiting_time: float
    short: Amounts
    #: How often it was evicted, and how often its driver failed or was lost; absent: never.
    preemptions: int
    failures: int
    #: Of a job that runs: its claim by node; what its drivers hold in Ray, and what of that is more than its
    #: claim. What plain tasks hold is not in it.
    claimed: dict[str, Amounts]
    used: Amounts
    beyond_claim: Amounts
    agent_name: str
    node_id: Annotated[str, NameOf.NODE] | None
    #: Seconds since 1970.
    started_at: float
    ended_at: float
    #: Why it waits, or was not completed.
    reason: str
    error: str


class ListJobs(Call, tag="list_jobs", frozen=True, kw_only=True):
    """List the jobs that wait, run, or have ended lately."""

    listings: ClassVar = (
        ListRoute(
            path="/jobs",
            summary="List the jobs that run, wait, or have ended lately",
            row=JobListing,
            key=("task_id",),
            missing=Reason.TASK_NOT_FOUND,
            paged="jobs",
        ),
    )


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
