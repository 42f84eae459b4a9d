"""The calls of SimpleScheduler about pools and cohorts, which RayScheduler documents."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType
from typing_extensions import Unpack

from schedulemesh.core.client import cohort_listings, listings, results
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.task_fields import LendingFields


@public_calls
class SimplePoolCalls:
    """Creates, changes and lists pools and cohorts."""

    scheduler: RayScheduler

    @public(LendingFields)
    def ensure_pool(
        self,
        name: str,
        labels: Mapping[str, str] | UnsetType | None = UNSET,
        resources: Mapping[str, object] | UnsetType | None = UNSET,
        target_agents: int | UnsetType | None = UNSET,
        placement_strategy: str | UnsetType | None = UNSET,
        pg_pool_config: Mapping[str, object] | UnsetType | None = UNSET,
        *,
        on_preempted: str | UnsetType | None = UNSET,
        queueing: str | UnsetType | None = UNSET,
        **lending: Unpack[LendingFields],
    ) -> listings.PoolResult:
        """Create a pool, or change what is given of one that exists; see RayScheduler.ensure_pool."""
        definition = (labels, resources, target_agents, placement_strategy, pg_pool_config)
        return self.scheduler.ensure_pool(
            name, *definition, on_preempted=on_preempted, queueing=queueing, **lending
        )

    def ensure_cohort(
        self,
        name: str,
        parent: str | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
    ) -> results.Result:
        """Create a cohort, or change what is given of one; see RayScheduler.ensure_cohort."""
        return self.scheduler.ensure_cohort(name, parent, weight)

    def list_cohorts(self) -> cohort_listings.CohortsResult:
        """Return ``cohorts``: every cohort with its pools, their quota, and what of it is idle."""
        return self.scheduler.list_cohorts()

    def resize_pool(
        self,
        name: str,
        resources: Mapping[str, object] | UnsetType | None = UNSET,
        target_agents: int | UnsetType | None = UNSET,
        pg_pool_config: Mapping[str, object] | UnsetType | None = UNSET,
        *,
        on_preempted: str | UnsetType | None = UNSET,
        queueing: str | UnsetType | None = UNSET,
    ) -> listings.PoolResult:
        """Change what is given of a pool that exists; see RayScheduler.resize_pool."""
        return self.scheduler.resize_pool(
            name,
            resources,
            target_agents,
            pg_pool_config,
            on_preempted=on_preempted,
            queueing=queueing,
        )

    def list_pools(self) -> listings.PoolsResult:
        """Return ``pools``: every pool with its quota by use."""
        return self.scheduler.list_pools()
