"""Types of the results that describe cohorts and loans."""

from __future__ import annotations

from schedulemesh.api.pools import CohortInfo
from schedulemesh.core.client.results import Result


class CohortsResult(Result, total=False):
    """The answer of ``list_cohorts``."""

    cohorts: list[CohortInfo]
