"""Pools and cohorts: create, change and list them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from schedulemesh.api.call import Call, Change, ChangeWithBlobs
from schedulemesh.api.values import Amounts, CohortName, Labels, Name, PoolName
from schedulemesh.config.pools import (
    Lending,
    changed,
    check_lending,
    check_pool,
    parse_queueing,
    parse_target,
)
from schedulemesh.domain.cohort import CohortSpec, parse_weight
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.task import parse_on_preempted


class CreatePool(ChangeWithBlobs, tag="create_pool", frozen=True, kw_only=True):
    """Create a pool; refused if a different pool of this name exists."""

    spec: PoolSpec

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pool(self.spec)


class PoolChanges(ChangeWithBlobs, frozen=True, kw_only=True):
    """Base of calls that change the given fields of a pool."""

    name: PoolName
    labels: Labels | UnsetType = UNSET
    resources: Amounts | UnsetType = UNSET
    target_agents: int | UnsetType = UNSET
    placement_strategy: str | UnsetType = UNSET
    #: As given by the caller, as plain data without ``warm``; the supervisor merges it with the current one.
    pg_pool_config: dict[str, Any] | UnsetType | None = UNSET
    warm: WarmSpec | UnsetType | None = UNSET
    on_preempted: str | UnsetType = UNSET
    queueing: str | UnsetType = UNSET
    lending: Lending = {}  # noqa: RUF012  # a struct copies it

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lending(self.lending)
        if self.target_agents is not UNSET:
            parse_target(self.target_agents)
        if self.on_preempted is not UNSET:
            parse_on_preempted(self.on_preempted)
        if self.queueing is not UNSET:
            parse_queueing(self.queueing)

    @property
    def config(self) -> dict[str, Any] | UnsetType | None:
        """The ``pg_pool_config`` including ``warm``."""
        if self.warm is UNSET or not isinstance(self.pg_pool_config, dict):
            return self.pg_pool_config
        return {**self.pg_pool_config, "warm": self.warm}

    def applied_to(self, spec: PoolSpec) -> PoolSpec:
        """The pool with these changes. Raises InvalidRequestError."""
        return changed(
            spec,
            labels=self.labels,
            resources=self.resources,
            target_agents=self.target_agents,
            placement_strategy=self.placement_strategy,
            pg_pool_config=self.config,
            on_preempted=self.on_preempted,
            queueing=self.queueing,
            **self.lending,
        )


class EnsurePool(PoolChanges, tag="ensure_pool", frozen=True, kw_only=True):
    """Create a pool, or change the given fields."""


class ResizePool(PoolChanges, tag="resize_pool", frozen=True, kw_only=True):
    """Change the given fields of a pool."""


class EnsureCohort(Change, tag="ensure_cohort", frozen=True, kw_only=True):
    """Create a cohort, or change the given fields."""

    name: CohortName
    parent: Name | UnsetType | None = UNSET
    weight: float | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight is not UNSET:
            parse_weight(self.weight)

    def applied_to(self, spec: CohortSpec) -> CohortSpec:
        """The cohort with these changes."""
        fields = {"parent": self.parent, "weight": self.weight}
        return msgspec.structs.replace(
            spec, **{name: value for name, value in fields.items() if value is not UNSET}
        )


class ListPools(Call, tag="list_pools", frozen=True, kw_only=True):
    """List all pools with their quota."""


class ListCohorts(Call, tag="list_cohorts", frozen=True, kw_only=True):
    """List the cohorts."""


class GetGroupStats(Call, tag="get_group_stats", frozen=True, kw_only=True):
    """Get statistics of the placement groups of all pools (of one)."""

    pool_name: PoolName | None = None
