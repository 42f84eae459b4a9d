"""Rows of pools and cohorts, as the Python calls and the HTTP API return them."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

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


class PoolDefinition(LendingDefinition, total=False):
    """What a pool was defined as."""

    name: str
    labels: dict[str, str]
    #: The total quota.
    resources: Amounts
    target_agents: int
    placement_strategy: str
    #: "requeue" or "drop": what becomes of its evicted tasks that do not say it themselves.
    on_preempted: str
    #: "best_effort": what fits passes tasks that do not, if it does not delay the first; "strict": nothing
    #: does; "greedy": whatever fits does.
    queueing: str
    #: None: the pool keeps no placement groups.
    pg_pool_config: dict[str, Any] | None


class PoolInfo(PoolDefinition, LoansInfo, total=False):
    """A pool, its quota by use, and the names of its agents."""

    free: Amounts
    #: Held for agents that do not run yet.
    reserved: Amounts
    used: Amounts
    #: The part of its quota that agents of other pools hold.
    lent: Amounts
    #: The part of other pools' quota that its agents hold.
    borrowed: Amounts
    #: How many tasks wait in its queue.
    queued: int
    agents: list[str]
