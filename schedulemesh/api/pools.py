"""Pools and cohorts: create, change and list them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypedDict, cast

import msgspec
from msgspec import UNSET, UnsetType

from schedulemesh.api.call import Call, ChangeWithBlobs, ChangingCall
from schedulemesh.api.routes import ListRoute, delete, get, post
from schedulemesh.api.rows import NameOf, OneOf
from schedulemesh.api.tables import Shown, Table, TableColumn
from schedulemesh.api.tasks import OnPreempted, PoolOf
from schedulemesh.api.values import (
    Checked,
    CheckedResources,
    ClientName,
    CohortName,
    Labels,
    Name,
    PoolName,
    Seconds,
)
from schedulemesh.config.pools import (
    PARSERS,
    Lending,
    PoolFields,
    changed,
    check_lending,
    check_pool,
    public_lending,
)
from schedulemesh.domain.budgets import (
    PERIODS,
    STATES,
    THEN,
    Budget,
)
from schedulemesh.domain.cohort import CohortSpec, parse_weight
from schedulemesh.domain.flavors import MAX_FLAVORS, Flavor
from schedulemesh.domain.owner_limits import (
    OWNER_ORDERS,
    OwnerLimit,
)
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.domain.pool import QUEUEING, PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.tokens import Role
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.errors import InvalidRequestError

#: Whether a pool takes what is new.
POOL_STATES = ("open", "draining", "ending")

#: What rows say in the same words.
Cohort = Annotated[str, NameOf.COHORT]


class LendingDefinition(TypedDict, total=False):
    """With whom a pool shares its quota, and how much."""

    #: None: it shares its idle quota with no pool.
    cohort: Cohort | None
    #: None: no limit; 0: nothing of any kind.
    lending_limit: Amounts | Literal[0] | None
    borrowing_limit: Amounts | Literal[0] | None
    weight: float


def lending_definition(spec: PoolSpec) -> LendingDefinition:
    """What a pool lends and borrows, as listings show it."""
    return cast("LendingDefinition", public_lending(spec))


class LoansInfo(TypedDict, total=False):
    """The loans of a pool."""

    #: ``lent`` by the pool that holds it, and ``borrowed`` by the pool that it belongs to.
    lent_to: dict[str, Amounts]
    borrowed_from: dict[str, Amounts]


class CohortInfo(TypedDict, total=False):
    """A cohort, the pools and cohorts directly in it, and the quota of all pools below it."""

    name: Cohort
    #: None: it is in no other cohort.
    parent: Cohort | None
    weight: float
    pools: list[str]
    cohorts: list[str]
    #: The total quota of all pools below it, and what of that is idle and may be lent.
    resources: Amounts
    idle: Amounts


class PoolDefinition(LendingDefinition, total=False):
    """What a pool was defined as."""

    name: PoolOf
    labels: dict[str, str]
    #: The total quota.
    resources: Amounts
    target_agents: int
    placement_strategy: str
    #: "requeue" or "drop": what becomes of its evicted tasks that do not say it themselves.
    on_preempted: OnPreempted
    #: "best_effort": what fits is backfilled before tasks that do not, if it does not delay the first;
    #: "strict": nothing is; "greedy": whatever fits is.
    queueing: Annotated[str, OneOf(*QUEUEING)]
    #: The most seconds that an attempt of its tasks may run, and how many of one that does not say it; None:
    #: no limit, and as ``max_run_s``.
    max_run_s: float | None
    default_max_run_s: float | None
    #: Seconds for which the GPUs of its tasks may be idle that do not say it; None: no limit.
    idle_s: float | None
    #: The lowest and the highest priority with which tasks are submitted to it; None: any.
    min_priority: float | None
    max_priority: float | None
    #: By owner, "default" for all others: the most of each kind that their tasks hold at once, how many are
    #: ``running`` at once, and how many ``queued``; None: not limited although the default is.
    owner_limits: dict[str, dict[str, Any]]
    #: "none", or "fair": the tasks of the owner come first who has used least.
    owner_order: Annotated[str, OneOf(*OWNER_ORDERS)]
    #: How many ``gpu_hours`` its tasks may use in each ``period``, and what happens ``then``; None: any
    #: number.
    budget: dict[str, Any] | None
    #: The same of each owner, "default" for all others.
    owner_budgets: dict[str, dict[str, Any]]
    #: Its named sets of nodes, each a ``name``, a ``label_selector`` and the ``kinds`` of which it has
    #: its own quota: ``gpu@h100`` among ``resources``. Tasks try them in this order.
    flavors: list[dict[str, Any]]
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
    #: "draining": nothing new starts in it; "ending": and it is deleted when nothing uses it any more.
    state: Annotated[str, OneOf(*POOL_STATES)]


class PlacementGroupRow(TypedDict, total=False):
    """A placement group that a pool keeps, or that one of its agents uses."""

    pool_name: PoolOf
    id: str
    #: In Ray.
    name: str
    #: Whether the pool keeps it.
    reserved: bool
    phase: Annotated[str, OneOf.codes(GroupPhase)]
    bundles: list[Amounts]
    placement_strategy: str
    node_ids: list[str]
    #: The agent that uses it; None: none does.
    agent: str | None
    #: For how many seconds nobody has used it.
    idle_s: float


class UnplacedGroup(TypedDict, total=False):
    """A reserved placement group that cannot be created, and why."""

    bundles: list[Amounts]
    placement_strategy: str
    bundle_label_selector: dict[str, str]
    error: str


class ReservedGroups(TypedDict, total=False):
    """How many reserved placement groups a pool has, how many are ready, and which cannot be created."""

    reserved: int
    ready: int
    unplaced: list[UnplacedGroup]


class GroupCounts(TypedDict, total=False):
    """Placement groups that exist, by kind and use, and what happened to groups so far."""

    reserved: int
    dynamic: int
    free: int
    in_use: int
    created: int
    reused: int
    destroyed: int
    #: Agents that wait for a group now.
    waiting: int
    #: Seconds that agents with a group waited for it, on average.
    mean_wait: float


class WarmHosts(TypedDict, total=False):
    """The warm hosts of a pool, and why no more are started."""

    ready: int
    starting: int
    errors: list[str]


class PoolGroups(GroupCounts, total=False):
    """The placement groups of one pool."""

    groups: list[PlacementGroupRow]
    unplaced: list[UnplacedGroup]
    warm: WarmHosts


class AllGroups(GroupCounts, total=False):
    """The placement groups of all pools together, and of each."""

    pools: dict[str, PoolGroups]


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
    resources: CheckedResources | UnsetType = UNSET
    target_agents: int | UnsetType = UNSET
    placement_strategy: str | UnsetType = UNSET
    #: As given by the caller, as plain data without ``warm``; the supervisor merges it with the current one.
    pg_pool_config: dict[str, Any] | UnsetType | None = UNSET
    warm: WarmSpec | UnsetType | None = UNSET
    on_preempted: str | UnsetType = UNSET
    queueing: str | UnsetType = UNSET
    max_run_s: float | UnsetType | None = UNSET
    default_max_run_s: float | UnsetType | None = UNSET
    idle_s: float | UnsetType | None = UNSET
    min_priority: float | UnsetType | None = UNSET
    max_priority: float | UnsetType | None = UNSET
    owner_limits: dict[str, OwnerLimit] | UnsetType = UNSET
    owner_order: str | UnsetType = UNSET
    budget: Budget | UnsetType | None = UNSET
    owner_budgets: dict[str, Budget] | UnsetType = UNSET
    flavors: Annotated[tuple[Flavor, ...], msgspec.Meta(max_length=MAX_FLAVORS)] | UnsetType = UNSET
    lending: Lending = {}  # noqa: RUF012  # a struct copies it

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lending(self.lending)
        for name, value in self._given().items():
            PARSERS[name](value)

    @property
    def config(self) -> dict[str, Any] | UnsetType | None:
        """The ``pg_pool_config`` including ``warm``."""
        if self.warm is UNSET or not isinstance(self.pg_pool_config, dict):
            return self.pg_pool_config
        return {**self.pg_pool_config, "warm": self.warm}

    def applied_to(self, spec: PoolSpec) -> PoolSpec:
        """The pool with these changes. Raises InvalidRequestError."""
        fields = cast("PoolFields", self._given())
        return changed(spec, pg_pool_config=self.config, **fields, **self.lending)

    def _given(self) -> dict[str, object]:
        """The fields that are given, but those of lending and placement groups."""
        fields = {name: getattr(self, name) for name in PARSERS}
        return {name: value for name, value in fields.items() if value is not UNSET}


class EnsurePool(PoolChanges, tag="ensure_pool", frozen=True, kw_only=True):
    """Create a pool, or change the given fields."""

    least_role: ClassVar[Role] = Role.POOL_OPERATOR


class ResizePool(PoolChanges, tag="resize_pool", frozen=True, kw_only=True):
    """Change the given fields of a pool."""

    least_role: ClassVar[Role] = Role.POOL_OPERATOR


class DeletePool(ChangingCall, tag="delete_pool", frozen=True, kw_only=True):
    """Delete a pool that nothing uses, or drain it and delete it then."""

    routes: ClassVar = (
        delete(
            "/pools/{name}",
            "Delete a pool that nothing uses",
            drain=False,
            deadline_s=None,
        ),
        post(
            "/pools/{name}/end",
            "Drain a pool, and delete it when nothing uses it any more",
            renamed={"deadline_s": "deadline"},
            drain=True,
        ),
    )

    name: PoolName
    #: Whether a pool that is in use is drained first; False: it is refused.
    drain: bool = False
    #: Seconds by which what runs should have ended; None: it is evicted at once.
    deadline_s: Seconds | None = None
    client: ClientName

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deadline_s is not None and not self.drain:
            raise InvalidRequestError(
                "a deadline is for what runs in the pool, which is only evicted with drain=True"
            )


class RenamePool(ChangingCall, tag="rename_pool", frozen=True, kw_only=True):
    """Give a pool another name."""

    routes: ClassVar = (post("/pools/{name}/rename", "Give a pool another name"),)

    name: PoolName
    new_name: PoolName


class CreateCohort(ChangingCall, tag="create_cohort", frozen=True, kw_only=True):
    """Create a cohort; refused if a different cohort of this name exists."""

    routes: ClassVar = (post("/cohorts", "Create a cohort that does not exist yet"),)

    name: CohortName
    parent: CohortName | None = None
    weight: Annotated[float, Checked(parse_weight)] = 1.0

    @property
    def spec(self) -> CohortSpec:
        """Its definition."""
        return CohortSpec(name=self.name, parent=self.parent, weight=self.weight)


class DeleteCohort(ChangingCall, tag="delete_cohort", frozen=True, kw_only=True):
    """Delete a cohort in which no pool and no cohort is."""

    routes: ClassVar = (delete("/cohorts/{name}", "Delete a cohort in which nothing is"),)

    name: CohortName


class RenameCohort(ChangingCall, tag="rename_cohort", frozen=True, kw_only=True):
    """Give a cohort another name."""

    routes: ClassVar = (post("/cohorts/{name}/rename", "Give a cohort another name"),)

    name: CohortName
    new_name: CohortName


class EnsureCohort(ChangingCall, tag="ensure_cohort", frozen=True, kw_only=True):
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

    listings: ClassVar = (
        ListRoute(
            path="/pools",
            summary="List the pools with their quota by use",
            row=PoolInfo,
            key=("name",),
            missing=Reason.POOL_NOT_FOUND,
        ),
    )


class ShareInfo(TypedDict, total=False):
    """A pool, or an owner in it: what it holds, and what counts of it where it is compared with others."""

    pool_name: PoolOf
    #: None: the row is the pool's.
    owner: str | None
    #: What its tasks hold, borrowed quota included.
    resources: Amounts
    #: How many agents hold it, and how many tasks wait.
    running: int
    queued: int
    #: Of a pool: the largest part of the quota of all pools that it holds, by its weight; of an owner: that
    #: of the pool's quota.
    usage: float
    #: Of a pool: what it has borrowed beyond what it lends, as a part of its cohorts' quota by its weight; of
    #: an owner: what it has used of the pool. Each as it is now, or its decayed mean where that is more.
    share: float
    #: Of a pool: what its use is divided by; None: an owner.
    weight: float | None
    #: Of an owner: its limits, as in ``owner_limits``; None: a pool.
    limit: dict[str, Any] | None


class ListShares(Call, tag="list_shares", frozen=True, kw_only=True):
    """List what pools and their owners use, and by which shares they are compared.

    Of two owners in a pool whose owner_order is fair the one with the smaller share comes first.
    """

    listings: ClassVar = (
        ListRoute(
            path="/shares",
            row=ShareInfo,
            key=("pool_name", "owner"),
            table=Table(
                command="shares",
                group="Understand",
                chinese="列出资源池和负责人的用量，以及用于比较的占比。",
                rows=("shares", "占比"),
                name="pool_name",
                columns=(
                    TableColumn("pool_name", "pool"),
                    TableColumn("owner", shown=Shown.OWNER),
                    TableColumn("running", chinese="运行中"),
                    TableColumn("queued"),
                    TableColumn("resources", "holds"),
                    TableColumn("usage", shown=Shown.PERCENT),
                    TableColumn("share", chinese="占比", shown=Shown.PERCENT),
                    TableColumn("limit", chinese="限额", shown=Shown.LIMIT_OF_OWNER),
                    TableColumn("weight", wide=True),
                ),
            ),
        ),
    )


class BudgetInfo(TypedDict, total=False):
    """The budget of a pool, or of an owner in it, and what was used of it in the present period."""

    pool_name: PoolOf
    #: None: the row is the pool's.
    owner: str | None
    gpu_hours: float
    period: Annotated[str, OneOf(*PERIODS)]
    #: What happens once it is spent.
    then: Annotated[str, OneOf(*THEN)]
    #: By which clock its period turns, as the difference to UTC.
    utc_offset: str
    state: Annotated[str, OneOf(*STATES)]
    #: GPU-hours that were used, and the part of the budget that they are.
    used: float
    part: float
    #: Since when they are counted, and when the period turns; in seconds since 1970.
    since: float
    until: float
    #: GPU-hours until the period turns if use goes on as so far, and when the budget is spent then; None: not
    #: in the period, or it is spent already.
    forecast: float
    spent_at: float | None


class ListBudgets(Call, tag="list_budgets", frozen=True, kw_only=True):
    """List the budgets of pools and their owners: what was used of them, and when they will be spent.

    The forecast is what is used until the period turns if use goes on as so far.
    """

    listings: ClassVar = (
        ListRoute(
            path="/budgets",
            row=BudgetInfo,
            key=("pool_name", "owner"),
            table=Table(
                command="budgets",
                group="Understand",
                chinese="列出资源池和负责人的预算：用了多少，何时用完。",
                rows=("budgets", "预算"),
                name="pool_name",
                columns=(
                    TableColumn("pool_name", "pool"),
                    TableColumn("owner", shown=Shown.OWNER),
                    TableColumn("gpu_hours", "gpu-hours", "GPU 小时", Shown.HOURS),
                    TableColumn("period", "per", "周期"),
                    TableColumn("used", shown=Shown.HOURS),
                    TableColumn("part", chinese="已用比例", shown=Shown.PERCENT),
                    TableColumn("forecast", chinese="预计", shown=Shown.HOURS),
                    TableColumn("spent_at", "spent in", "距用完", Shown.UNTIL),
                    TableColumn("until", "turns in", "距周期切换", Shown.UNTIL),
                    TableColumn("then", chinese="用完后", wide=True),
                    TableColumn("state"),
                    TableColumn("since", "counted since", "起算时间", wide=True),
                    TableColumn("utc_offset", "clock", "时钟", wide=True),
                ),
            ),
        ),
    )


class ListCohorts(Call, tag="list_cohorts", frozen=True, kw_only=True):
    """List the cohorts."""

    listings: ClassVar = (
        ListRoute(
            path="/cohorts",
            summary="List the cohorts",
            row=CohortInfo,
            key=("name",),
            missing=Reason.COHORT_NOT_FOUND,
        ),
    )


class GetGroupStats(Call, tag="get_group_stats", frozen=True, kw_only=True):
    """Get statistics of the placement groups of all pools (of one)."""

    routes: ClassVar = (
        get("/placement_groups", "Read the placement groups of all pools"),
        get("/pools/{pool_name}/placement_groups", "Read the placement groups of a pool"),
    )

    pool_name: PoolName | None = None
