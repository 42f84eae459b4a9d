"""The documented result dicts of calls about jobs."""

from __future__ import annotations

from schedulemesh.core.client.results import Result
from schedulemesh.protocol.task_rows import JobListing


class JobsResult(Result, total=False):
    """The answer of ``jobs``."""

    jobs: list[JobListing]
