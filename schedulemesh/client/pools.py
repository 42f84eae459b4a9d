"""The calls that define and list pools and cohorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from msgspec import UNSET, UnsetType
from typing_extensions import Unpack

from schedulemesh.api.pools import (
    CreateCohort,
    CreatePool,
    DeleteCohort,
    DeletePool,
    EnsureCohort,
    EnsurePool,
    GetGroupStats,
    ListBudgets,
    ListCohorts,
    ListPools,
    ListShares,
    RenameCohort,
    RenamePool,
    ResizePool,
)
from schedulemesh.api.results import Result
from schedulemesh.api.values import client_name
from schedulemesh.client import results
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.asking import ask, details, done, listed, logged
from schedulemesh.client.group_config import GroupConfig, parse_group_config
from schedulemesh.client.listings import (
    BudgetsResult,
    CohortsResult,
    GroupsResult,
    PoolResult,
    PoolsResult,
    SharesResult,
)
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.task_fields import LendingFields
from schedulemesh.config.groups import parse_groups, public_groups
from schedulemesh.config.pools import (
    DEFAULT_STRATEGY,
    PoolFields,
    parse_changes,
    parse_lending,
    parse_pool,
)
from schedulemesh.domain.cohort import parse_cohort, parse_weight
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag, parse_timeout
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import PoolResponse
from schedulemesh.protocol.public import pool_definition, refused, result_of


class _Changes(PoolFields, total=False):
    """The fields of PoolChanges that a caller gave."""

    pg_pool_config: dict[str, object] | None
    warm: WarmSpec | UnsetType | None
    blobs: dict[str, bytes]


class _CohortChanges(TypedDict, total=False):
    """The fields of a cohort that a caller gave."""

    parent: str | None
    weight: float


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
        max_run_s: float | str | None = None,
        default_max_run_s: float | str | None = None,
        idle_s: float | str | None = None,
        min_priority: float | str | None = None,
        max_priority: float | str | None = None,
        owner_limits: Mapping[str, Mapping[str, object]] | None = None,
        owner_order: str = "none",
        budget: Mapping[str, object] | None = None,
        owner_budgets: Mapping[str, Mapping[str, object]] | None = None,
        flavors: Sequence[Mapping[str, object]] | None = None,
        **lending: Unpack[LendingFields],
    ) -> PoolResult:
        """Create a pool whose total quota is ``resources``, which need not exist in the cluster.

        The same definition again changes nothing; another one is refused with ``pool_exists``. An agent that
        names no resources gets the quota divided by ``target_agents``, or all of it if that is 0. With
        ``pg_pool_config`` every agent of the pool runs in a placement group. ``on_preempted``, ``queueing``,
        the limits in time and what it lends are as for ``ensure_pool``.

        Returns ``pool`` (the definition) and ``detail`` ("created" or "unchanged"). For a pool that keeps
        placement groups it returns when the reserved ones are ready, or cannot be created:
        ``placement_groups`` has ``reserved``, ``ready`` and ``unplaced``.
        """
        config = self._group_config(pg_pool_config)
        spec = parse_pool(
            name,
            labels,
            {} if resources is None else resources,
            target_agents,
            placement_strategy,
            config.whole,
            lending=parse_lending(_without_unset(lending)),
            on_preempted=on_preempted,
            queueing=queueing,
            max_run_s=max_run_s,
            default_max_run_s=default_max_run_s,
            idle_s=idle_s,
            min_priority=min_priority,
            max_priority=max_priority,
            owner_limits=owner_limits,
            owner_order=owner_order,
            budget=budget,
            owner_budgets=owner_budgets,
            flavors=flavors,
        )
        answer = ask(self._connection, CreatePool(spec=spec, blobs=config.blobs), PoolResponse)
        return logged("create_pool", _result(answer))

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
        max_run_s: float | str | UnsetType | None = UNSET,
        default_max_run_s: float | str | UnsetType | None = UNSET,
        idle_s: float | str | UnsetType | None = UNSET,
        min_priority: float | str | UnsetType | None = UNSET,
        max_priority: float | str | UnsetType | None = UNSET,
        owner_limits: Mapping[str, Mapping[str, object]] | UnsetType | None = UNSET,
        owner_order: str | UnsetType | None = UNSET,
        budget: Mapping[str, object] | UnsetType | None = UNSET,
        owner_budgets: Mapping[str, Mapping[str, object]] | UnsetType | None = UNSET,
        flavors: Sequence[Mapping[str, object]] | UnsetType | None = UNSET,
        **lending: Unpack[LendingFields],
    ) -> PoolResult:
        """Create a pool, or change what is given of one that exists.

        What is left out stays as it is, ``pg_pool_config`` key by key; None or an empty value removes what
        was there. A quota may be less than what is in use: nothing new gets of it what is above, it shrinks
        as tasks end, what the pool has lent of it is called back, and ``warnings`` say what is above. Refused
        with ``pool_ending`` while the pool is being deleted.

        ``on_preempted`` says what becomes of its evicted tasks that do not say it themselves: "requeue" or
        "drop". ``queueing`` says how its queue is served: "best_effort", what fits starts unless it delays
        the first task, "strict", nothing starts before the first task, or "greedy", what fits starts.

        No attempt of its tasks runs for longer than ``max_run_s`` (seconds, or "4h"); a task that says
        nothing has ``default_max_run_s``, and where there is none ``max_run_s``. A task whose GPUs were idle
        for ``idle_s`` is warned, and ended after as long again. None: no limit.

        Tasks are submitted to it with priorities from ``min_priority`` to ``max_priority`` only, numbers or
        names of classes; others are refused with ``priority_not_permitted``.

        ``owner_limits`` says what the tasks of each owner may have of the pool: ``{"default": {"gpu": 8},
        "ada": {"gpu": 16, "queued": 100}}``. An entry names the most of each kind of resource that they hold
        at once, how many are ``running`` at once, and how many wait (``queued``); what it leaves out is as in
        "default", None is no limit. An owner at a limit is passed over, and others start. With
        ``owner_order="fair"`` the tasks of the owner come first who has used least; "none" is the order of
        the queue alone.

        ``budget`` says how many GPU-hours its tasks may use in each period: ``{"gpu_hours": 10000,
        "period": "month", "then": "hold"}``; the period is a "day", "week" or "month" of the calendar, by the
        clock of ``utc_offset`` ("+08:00"; UTC). Once it is spent, no task starts that asks for GPUs until the
        period turns ("hold"), or such tasks have at most its ``priority`` until then ("lower_priority",
        "background"), or it is only told ("warn"). ``owner_budgets`` says the same of each owner, as
        ``owner_limits`` does.

        ``flavors`` are named sets of nodes with a quota of their own, in the order in which tasks try them:
        ``[{"name": "h100", "label_selector": {"ray.io/accelerator-type": "H100"}}]``. The quota of one is
        ``gpu@h100`` among ``resources``, which then have no plain ``gpu``; ``kinds`` names other kinds than
        GPUs, such as ``["cpu", "memory"]``.

        The pools of a ``cohort`` lend each other idle quota: at most ``lending_limit`` of this pool's is held
        by others at once, and this pool holds at most ``borrowing_limit`` of others'. A limit is a dict of
        amounts (a kind that it leaves out is not limited), 0 for nothing of any kind, or None for no limit.
        A task that its pool's own quota covers gets it back at once by the eviction of borrowers. Among
        borrowers, use of others' quota counts divided by ``weight``. A cohort that does not exist is created.

        Returns what ``create_pool`` returns; ``detail`` may also be "changed".
        """
        definition = {
            "labels": labels,
            "resources": resources,
            "target_agents": target_agents,
            "placement_strategy": placement_strategy,
            "on_preempted": on_preempted,
            "queueing": queueing,
            "max_run_s": max_run_s,
            "default_max_run_s": default_max_run_s,
            "idle_s": idle_s,
            "min_priority": min_priority,
            "max_priority": max_priority,
            "owner_limits": owner_limits,
            "owner_order": owner_order,
            "budget": budget,
            "owner_budgets": owner_budgets,
            "flavors": flavors,
        }
        request = EnsurePool(
            name=parse_name(name, "the pool's name"),
            lending=parse_lending(_without_unset(lending)),
            **self._changes(definition, pg_pool_config),
        )
        return logged("ensure_pool", _result(ask(self._connection, request, PoolResponse)))

    def delete_pool(
        self, name: str, *, drain: bool = False, deadline: float | None = None
    ) -> Result:
        """Delete a pool that nothing uses.

        One that is in use is refused with ``pool_in_use``, unless ``drain`` is set: then it takes nothing
        new, what waits is cancelled (``pool_ending``), what runs is saved and evicted as by ``drain_pool``
        but does not wait again, what it has lent is called back, and it is deleted when nothing uses it any
        more. ``deadline``, in seconds from now, lets tasks finish that are expected to end in time. Until it
        is deleted, ``undrain_pool`` keeps it. Returns at once; ``detail`` is "deleted", "ending" or
        "unchanged".
        """
        request = DeletePool(
            name=parse_name(name, "the pool's name"),
            drain=parse_flag(drain, "drain"),
            deadline_s=None if deadline is None else parse_timeout(deadline, "deadline"),
            client=client_name(),
        )
        return logged("delete_pool", done(self._connection, request))

    def rename_pool(self, name: str, new_name: str) -> Result:
        """Give a pool another name, which all that refers to it then has: tasks, loans, tokens, policies.

        What has ended keeps the old name, and the history is found by either. Refused with ``pool_exists``
        where another pool has the new name.
        """
        request = RenamePool(
            name=parse_name(name, "the pool's name"),
            new_name=parse_name(new_name, "the new name"),
        )
        return logged("rename_pool", done(self._connection, request))

    def create_cohort(self, name: str, parent: str | None = None, weight: float = 1.0) -> Result:
        """Create a cohort; one that exists with another definition is refused with ``cohort_exists``.

        ``parent`` and ``weight`` as for ``ensure_cohort``.
        """
        request = CreateCohort(
            name=parse_name(name, "the cohort's name"),
            parent=parse_cohort(parent, "parent"),
            weight=parse_weight(weight),
        )
        return logged("create_cohort", done(self._connection, request))

    def delete_cohort(self, name: str) -> Result:
        """Delete a cohort. Refused with ``cohort_in_use`` where pools or cohorts are in it."""
        request = DeleteCohort(name=parse_name(name, "the cohort's name"))
        return logged("delete_cohort", done(self._connection, request))

    def rename_cohort(self, name: str, new_name: str) -> Result:
        """Give a cohort another name; what is in it stays in it. Refused with ``cohort_exists``."""
        request = RenameCohort(
            name=parse_name(name, "the cohort's name"),
            new_name=parse_name(new_name, "the new name"),
        )
        return logged("rename_cohort", done(self._connection, request))

    def ensure_cohort(
        self,
        name: str,
        parent: str | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
    ) -> Result:
        """Create a cohort, or change what is given of one that exists; None puts it into no other cohort.

        Pools borrow from the nearest cohort first. Among the borrowers of a ``parent``, what the pools of a
        cohort hold of others' quota counts together, divided by its ``weight`` (1.0). Refused with
        ``cohort_not_found`` where there is no such parent, and with ``cohort_cycle`` where it would be in
        itself. Returns ``detail``: "created", "changed" or "unchanged".
        """
        changes: _CohortChanges = {}
        if parent is not UNSET:
            changes["parent"] = parse_cohort(parent, "parent")
        if weight is not UNSET:
            changes["weight"] = 1.0 if weight is None else parse_weight(weight)
        request = EnsureCohort(name=parse_name(name, "the cohort's name"), **changes)
        return logged("ensure_cohort", done(self._connection, request))

    def list_cohorts(self) -> CohortsResult:
        """Return ``cohorts``: each with its parent, weight, pools and cohorts, the quota of all pools below
        it (``resources``), and what of that is ``idle`` and may be lent.
        """
        return listed(self._connection, ListCohorts(), "cohorts", CohortsResult)

    def resize_pool(
        self,
        name: str,
        resources: Mapping[str, object] | UnsetType | None = UNSET,
        target_agents: int | UnsetType | None = UNSET,
        pg_pool_config: Mapping[str, object] | UnsetType | None = UNSET,
        *,
        on_preempted: str | UnsetType | None = UNSET,
        queueing: str | UnsetType | None = UNSET,
        max_run_s: float | str | UnsetType | None = UNSET,
        default_max_run_s: float | str | UnsetType | None = UNSET,
        idle_s: float | str | UnsetType | None = UNSET,
        min_priority: float | str | UnsetType | None = UNSET,
        max_priority: float | str | UnsetType | None = UNSET,
        owner_limits: Mapping[str, Mapping[str, object]] | UnsetType | None = UNSET,
        owner_order: str | UnsetType | None = UNSET,
        budget: Mapping[str, object] | UnsetType | None = UNSET,
        owner_budgets: Mapping[str, Mapping[str, object]] | UnsetType | None = UNSET,
        flavors: Sequence[Mapping[str, object]] | UnsetType | None = UNSET,
    ) -> PoolResult:
        """Change what is given of a pool that exists, and create destroyed reserved groups again.

        As ``ensure_pool``; a pool that does not exist is refused with ``pool_not_found``.
        """
        definition = {
            "resources": resources,
            "target_agents": target_agents,
            "on_preempted": on_preempted,
            "queueing": queueing,
            "max_run_s": max_run_s,
            "default_max_run_s": default_max_run_s,
            "idle_s": idle_s,
            "min_priority": min_priority,
            "max_priority": max_priority,
            "owner_limits": owner_limits,
            "owner_order": owner_order,
            "budget": budget,
            "owner_budgets": owner_budgets,
            "flavors": flavors,
        }
        changes = self._changes(definition, pg_pool_config)
        request = ResizePool(name=parse_name(name, "the pool's name"), **changes)
        return logged("resize_pool", _result(ask(self._connection, request, PoolResponse)))

    def list_pools(self) -> PoolsResult:
        """Return ``pools``: each with its definition, its agents' names, and of its quota ``free``,
        ``reserved``, ``used``, ``lent`` and ``borrowed``; how many tasks are ``queued``; and ``lent_to`` and
        ``borrowed_from``, which say by which pool and from which.
        """
        return listed(self._connection, ListPools(), "pools", PoolsResult)

    def shares(self) -> SharesResult:
        """Return ``shares``: a row for each pool, and behind it one for each ``owner`` whose tasks run or
        wait in it, or have used it lately: what they hold (``resources``), how many are ``running`` and
        ``queued``, the ``usage`` now as a part of the quota, the ``share`` by which they are compared, and
        the ``weight`` of a pool or the ``limit`` of an owner.
        """
        return listed(self._connection, ListShares(), "shares", SharesResult)

    def budgets(self) -> BudgetsResult:
        """Return ``budgets``: a row for each pool that has one, and behind it one for each ``owner`` that has
        one: the GPU-hours ``used`` in the present period and the ``part`` of the budget that they are; since
        when they are counted, and until when; the ``forecast`` for the whole period if use goes on as so far,
        and when the budget is spent then (``spent_at``).
        """
        return listed(self._connection, ListBudgets(), "budgets", BudgetsResult)

    def pg_pool_stats(self, pool: str | None = None) -> GroupsResult:
        """Count the placement groups of all pools, or of one.

        Returns how many are ``reserved``, ``dynamic``, ``free`` and ``in_use``; how many were ``created``,
        ``reused`` and ``destroyed`` so far; how many agents are ``waiting`` for one; and how many seconds
        agents waited for theirs on average (``mean_wait``). ``pools`` has the same by pool, with its
        ``groups``, the reserved ones that are ``unplaced`` and why, and its warm hosts (``warm``).
        """
        name = None if pool is None else parse_name(pool, "the pool's name")
        return details(self._connection, GetGroupStats(pool_name=name), GroupsResult)

    def _group_config(self, pg_pool_config: object) -> GroupConfig:
        """A ``pg_pool_config`` as it is sent. Raises InvalidRequestError."""
        return parse_group_config(pg_pool_config)

    def _changes(self, definition: Mapping[str, object], pg_pool_config: object) -> _Changes:
        """What was given; None and empty values stand for the default. Raises InvalidRequestError."""
        changes = cast("_Changes", parse_changes(_without_unset(definition)))
        if pg_pool_config is not UNSET:
            config = self._group_config(pg_pool_config)
            # What is wrong in itself is reported here; what contradicts the pool, by the supervisor.
            parse_groups(config.whole, DEFAULT_STRATEGY)
            changes["pg_pool_config"], changes["warm"] = config.config, config.warm
            changes["blobs"] = config.blobs
        return changes


def _without_unset(fields: Mapping[str, object]) -> dict[str, object]:
    """The arguments that are not left out."""
    return {field: value for field, value in fields.items() if value is not UNSET}


def _result(response: PoolResponse | Refused) -> PoolResult:
    if isinstance(response, Refused):
        return results.combined(PoolResult, refused(response))
    result = results.combined(PoolResult, result_of(response.outcome))
    if response.spec is None:
        return result
    result["pool"] = pool_definition(response.spec)
    if response.groups is not None:
        result["pool"]["pg_pool_config"] = public_groups(response.spec.groups)
        result["placement_groups"] = response.groups
    return result
