"""Facts about cohorts, and loans in them; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.fact import Fact


class CohortEnsured(Fact, tag="cohort_ensured", frozen=True, kw_only=True):
    """The cohort exists with this definition, which replaces an earlier one of the same name."""

    spec: CohortSpec
    at: float


class CohortDeleted(Fact, tag="cohort_deleted", frozen=True, kw_only=True):
    """The cohort exists no more. No pool and no cohort was in it."""

    name: str
    at: float


class CohortRenamed(Fact, tag="cohort_renamed", frozen=True, kw_only=True):
    """The cohort has another name, by which the pools and cohorts in it refer to it."""

    #: The name until now.
    name: str
    new_name: str
    at: float


class LoansExchanged(Fact, tag="loans_exchanged", frozen=True, kw_only=True):
    """Running claims of one pool have exchanged quota: others of them hold the loans from now on, and what
    each pool has lent and borrowed is the same.
    """

    at: float
    #: By agent: what its claim holds from now on, as (pool, quota of it).
    claims: tuple[tuple[str, tuple[tuple[str, Resources], ...]], ...]


AnyCohortFact = Union[CohortEnsured, CohortDeleted, CohortRenamed, LoansExchanged]
