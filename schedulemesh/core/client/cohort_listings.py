"""Types of the results that describe cohorts and loans."""

from __future__ import annotations

from schedulemesh.core.client.results import Result
from schedulemesh.protocol.pool_rows import CohortInfo


class CohortsResult(Result, total=False):
    """The answer of ``list_cohorts``."""

    cohorts: list[CohortInfo]
