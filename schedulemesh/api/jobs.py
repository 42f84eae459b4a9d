"""Jobs: list them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from schedulemesh.api.call import Call
from schedulemesh.api.routes import ListRoute
from schedulemesh.api.rows import NameOf
from schedulemesh.api.tasks import TaskCondition, TaskInfo
from schedulemesh.api.values import Names
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts


class JobListing(TaskInfo, TaskCondition, total=False):
    """A job as ``jobs`` lists it."""

    #: The number of its present attempt, or of the last one.
    attempt: int
    #: Its claim.
    resources: Amounts
    #: Conditions on the labels of its nodes; of a job that waits, those that it prefers.
    label_selector: dict[str, str]
    #: The number of the alternative that it runs in, from 1; 0: it has one alone, or waits.
    alternative: int
    #: The flavor of its pool that it runs in; empty: in none, or it waits.
    flavor: str
    #: The Ray job that was adopted as this task; absent: its driver was started by the scheduler.
    ray_job_id: str
    #: Of one that waits: for how many seconds.
    waiting_time: float
    #: Of a job that runs: its claim by node; what its drivers hold in Ray, and what of that is more than its
    #: claim. What plain tasks hold is not in it.
    claimed: dict[str, Amounts]
    used: Amounts
    beyond_claim: Amounts
    #: Of a job that runs: where, since when (in seconds since 1970), and for how many seconds.
    node_id: Annotated[str, NameOf.NODE] | None
    started_at: float
    running_time: float
    #: When it has run for as long as it may, in seconds since 1970; None: it has no limit.
    limit_at: float | None
    #: Pages about it elsewhere, by name, as the policy says; absent: there are none.
    links: dict[str, str]


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

    #: Those with these ids only; None: all.
    task_ids: Names | None = None
