"""The calls of a scheduler object that define pools and list them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from schedulemesh.core.client import listings, pools
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.lifecycle import SchedulerObject


@public_calls
class PoolCalls(SchedulerObject):
    """Creates, changes and lists pools."""

    def create_pool(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, object] | None = None,
        target_agents: int = 0,
        placement_strategy: str = "STRICT_PACK",
        pg_pool_config: Mapping[str, object] | None = None,
        *,
        on_preempted: str = "drop",
        queueing: str = "best_effort",
    ) -> listings.PoolResult:
        """Create a pool whose total quota is ``resources``, which need not exist in the cluster.

        The same definition again changes nothing; another one is refused with ``pool_exists``. An agent that
        names no resources gets the quota divided by ``target_agents``, or all of it if that is 0. With
        ``pg_pool_config`` every agent of the pool runs in a placement group.

        Returns ``pool`` (the definition) and ``detail`` ("created" or "unchanged"). For a pool that keeps
        placement groups it returns when the reserved ones are ready, or cannot be created:
        ``placement_groups`` has ``reserved``, ``ready`` and ``unplaced``.
        """
        definition = (labels, resources, target_agents, placement_strategy, pg_pool_config)
        waiting = {"on_preempted": on_preempted, "queueing": queueing}
        return pools.create_pool(self._connection, name, *definition, waiting)

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
    ) -> listings.PoolResult:
        """Create a pool, or change what is given of one that exists.

        What is left out stays as it is, ``pg_pool_config`` key by key; None or an empty value removes what
        was there. Refused with ``pool_in_use`` where more is in use than the pool would have.

        ``on_preempted`` says what becomes of its evicted tasks that do not say it themselves: "requeue" or
        "drop". ``queueing`` says how its queue is served: "best_effort", what fits starts, or "strict",
        nothing passes a task that comes before it.

        Returns what ``create_pool`` returns; ``detail`` may also be "changed".
        """
        definition = (labels, resources, target_agents, placement_strategy, pg_pool_config)
        waiting = {"on_preempted": on_preempted, "queueing": queueing}
        return pools.ensure_pool(self._connection, name, *definition, waiting)

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
        """Change what is given of a pool that exists, and create destroyed reserved groups again.

        As ``ensure_pool``; a pool that does not exist is refused with ``pool_not_found``.
        """
        waiting = {"on_preempted": on_preempted, "queueing": queueing}
        definition = (resources, target_agents, pg_pool_config)
        return pools.resize_pool(self._connection, name, *definition, waiting)

    def list_pools(self) -> listings.PoolsResult:
        """Return ``pools``: each with its definition, its agents' names, and of its quota ``free``,
        ``reserved``, ``used``, ``lent`` and ``borrowed``; and how many tasks are ``queued``.
        """
        return pools.list_pools(self._connection)

    def pg_pool_stats(self, pool: str | None = None) -> listings.GroupsResult:
        """Count the placement groups of all pools, or of one.

        Returns how many are ``reserved``, ``dynamic``, ``free`` and ``in_use``; how many were ``created``,
        ``reused`` and ``destroyed`` so far; how many agents are ``waiting`` for one; and how many seconds
        agents waited for theirs on average (``mean_wait``). ``pools`` has the same by pool, with its
        ``groups``, the reserved ones that are ``unplaced`` and why, and its warm hosts (``warm``).
        """
        return pools.pg_pool_stats(self._connection, pool)
