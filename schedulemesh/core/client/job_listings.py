"""The documented result dicts of calls about jobs."""

from __future__ import annotations

from schedulemesh.core.client.results import Result, TaskInfo
from schedulemesh.domain.resources import Amounts


class JobListing(TaskInfo, total=False):
    """A job as ``jobs`` lists it."""

    #: As in TaskStatus.
    state: str
    #: The number of its present attempt, or of the last one.
    attempt: int
    #: Its claim.
    resources: Amounts
    #: Of one that waits: its place in the queue of its pool, and whether it is held.
    position: int
    held: bool
    #: How often it was evicted, and how often its driver failed or was lost; absent: never.
    preemptions: int
    failures: int
    #: Of a job that runs: what its drivers hold in Ray, and what of that is more than its claim. What plain
    #: tasks hold is not in it.
    used: Amounts
    beyond_claim: Amounts
    agent_name: str
    node_id: str | None
    #: Seconds since 1970.
    started_at: float
    ended_at: float
    #: Why it was not completed.
    reason: str
    error: str


class JobsResult(Result, total=False):
    """The answer of ``jobs``."""

    jobs: list[JobListing]
