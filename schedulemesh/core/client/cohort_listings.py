"""Types of the results that describe cohorts and loans."""

from __future__ import annotations

from typing import Literal, TypedDict

from schedulemesh.core.client.results import Result
from schedulemesh.domain.resources import Amounts


class LendingDefinition(TypedDict, total=False):
    """With whom a pool shares its quota, and how much."""

    #: None: it shares its idle quota with no pool.
    cohort: str | None
    #: None: no limit; 0: nothing of any kind.
    lending_limit: Amounts | Literal[0] | None
    borrowing_limit: Amounts | Literal[0] | None
    weight: float


class LoansInfo(TypedDict, total=False):
    """The loans of a pool."""

    #: ``lent`` by the pool that holds it, and ``borrowed`` by the pool that it belongs to.
    lent_to: dict[str, Amounts]
    borrowed_from: dict[str, Amounts]


class CohortInfo(TypedDict, total=False):
    """A cohort, the pools and cohorts directly in it, and the quota of all pools below it."""

    name: str
    #: None: it is in no other cohort.
    parent: str | None
    weight: float
    pools: list[str]
    cohorts: list[str]
    #: The total quota of all pools below it, and what of that is idle and may be lent.
    resources: Amounts
    idle: Amounts


class CohortsResult(Result, total=False):
    """The answer of ``list_cohorts``."""

    cohorts: list[CohortInfo]
