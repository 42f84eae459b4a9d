"""The documented result dicts of calls about jobs."""

from __future__ import annotations

from schedulemesh.api.jobs import JobListing
from schedulemesh.core.client.results import Result


class JobsResult(Result, total=False):
    """The answer of ``jobs``."""

    jobs: list[JobListing]
