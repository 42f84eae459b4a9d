"""The calls of a scheduler object that define and list pools and cohorts."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType
from typing_extensions import Unpack

from schedulemesh.core.client import cohort_listings, listings, pools, results
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.lifecycle import SchedulerObject
from schedulemesh.core.client.task_fields import LendingFields


@public_calls
class PoolCalls(SchedulerObject):
    """Creates, changes and lists pools and cohorts."""

    @public(LendingFields)
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
        **lending: Unpack[LendingFields],
    ) -> listings.PoolResult:
        """Create a pool whose total quota is ``resources``, which need not exist in the cluster.

        The same definition again changes nothing; another one is refused with ``pool_exists``. An agent that
        names no resources gets the quota divided by ``target_agents``, or all of it if that is 0. With
        ``pg_pool_config`` every agent of the pool runs in a placement group. ``on_preempted``, ``queueing``
        and what it lends are as for ``ensure_pool``.

        Returns ``pool`` (the definition) and ``detail`` ("created" or "unchanged"). For a pool that keeps
        placement groups it returns when the reserved ones are ready, or cannot be created:
        ``placement_groups`` has ``reserved``, ``ready`` and ``unplaced``.
        """
        definition = (labels, resources, target_agents, placement_strategy, pg_pool_config)
        waiting = {"on_preempted": on_preempted, "queueing": queueing}
        return pools.create_pool(self._connection, name, *definition, waiting, lending)

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
        """Create a pool, or change what is given of one that exists.

        What is left out stays as it is, ``pg_pool_config`` key by key; None or an empty value removes what
        was there. Refused with ``pool_in_use`` where more is in use than the pool would have.

        ``on_preempted`` says what becomes of its evicted tasks that do not say it themselves: "requeue" or
        "drop". ``queueing`` says how its queue is served: "best_effort", what fits starts unless it delays
        the first task, "strict", nothing passes a task that comes before it, or "greedy", what fits starts.

        The pools of a ``cohort`` lend each other idle quota: at most ``lending_limit`` of this pool's is held
        by others at once, and this pool holds at most ``borrowing_limit`` of others'. A limit is a dict of
        amounts (a kind that it leaves out is not limited), 0 for nothing of any kind, or None for no limit.
        A task that its pool's own quota covers gets it back at once by the eviction of borrowers. Among
        borrowers, use of others' quota counts divided by ``weight``. A cohort that does not exist is created.

        Returns what ``create_pool`` returns; ``detail`` may also be "changed".
        """
        definition = (labels, resources, target_agents, placement_strategy, pg_pool_config)
        waiting = {"on_preempted": on_preempted, "queueing": queueing}
        return pools.ensure_pool(self._connection, name, *definition, waiting, lending)

    def ensure_cohort(
        self,
        name: str,
        parent: str | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
    ) -> results.Result:
        """Create a cohort, or change what is given of one that exists; None puts it into no other cohort.

        Pools borrow from the nearest cohort first. Among the borrowers of a ``parent``, what the pools of a
        cohort hold of others' quota counts together, divided by its ``weight`` (1.0). Refused with
        ``cohort_not_found`` where there is no such parent, and with ``cohort_cycle`` where it would be in
        itself. Returns ``detail``: "created", "changed" or "unchanged".
        """
        return pools.ensure_cohort(self._connection, name, parent, weight)

    def list_cohorts(self) -> cohort_listings.CohortsResult:
        """Return ``cohorts``: each with its parent, weight, pools and cohorts, the quota of all pools below
        it (``resources``), and what of that is ``idle`` and may be lent.
        """
        return pools.list_cohorts(self._connection)

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
        ``reserved``, ``used``, ``lent`` and ``borrowed``; how many tasks are ``queued``; and ``lent_to`` and
        ``borrowed_from``, which say by which pool and from which.
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
