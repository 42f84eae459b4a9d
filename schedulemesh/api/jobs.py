"""Jobs: list them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from schedulemesh.api.call import Call
from schedulemesh.api.routes import ListRoute
from schedulemesh.api.rows import NameOf, OneOf
from schedulemesh.api.tasks import PHASES, TaskInfo
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.task import EndState


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
