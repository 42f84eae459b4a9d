"""A pool: a labelled quota for agents."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.budgets import Budget
from schedulemesh.domain.cohort import LoanLimit
from schedulemesh.domain.flavors import Flavor, without_flavors
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.owner_limits import OwnerLimit, limit_of
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.resources import NOTHING, UNIT, Resources

#: How a pool's queue is served when its first task does not fit: later tasks start that fit and do not delay
#: it, all wait, or later tasks that fit start.
QUEUEING = ("best_effort", "strict", "greedy")


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The definition of a pool: name, labels, total quota and intended number of agents."""

    name: str
    labels: Labels = {}
    #: The total quota; reserved + used never exceeds it.
    resources: Resources = NOTHING
    #: The number of agents of default size that share the quota; 0: one agent takes all of it.
    target_agents: int = 0
    placement_strategy: str = "STRICT_PACK"
    #: None: its agents run without placement groups.
    groups: GroupsSpec | None = None
    #: What becomes of its evicted tasks that do not say it themselves: one of ``task.ON_PREEMPTED``.
    on_preempted: str = "drop"
    #: One of ``QUEUEING``.
    queueing: str = "best_effort"
    #: The cohort whose pools lend each other idle quota; None: it neither lends nor borrows idle quota.
    cohort: str | None = None
    #: How much of its quota other pools may hold at once; None: no limit.
    lending_limit: LoanLimit | None = None
    #: How much quota of other pools it may hold at once; None: no limit.
    borrowing_limit: LoanLimit | None = None
    #: What its use of other pools' quota is divided by: twice the weight is entitled to twice as much.
    weight: float = 1.0
    #: The most seconds that an attempt of any of its tasks may run; None: no limit.
    max_run_s: float | None = None
    #: Seconds that an attempt of a task may run that does not say it itself; None: as ``max_run_s``.
    default_max_run_s: float | None = None
    #: Seconds for which the GPUs of a task that does not say it itself may be idle; None: no limit.
    idle_s: float | None = None
    #: The lowest and the highest priority with which tasks are submitted to it; None: any.
    min_priority: float | None = None
    max_priority: float | None = None
    #: What the tasks of each owner may have of it, by owner; "default" is for all others.
    owner_limits: dict[str, OwnerLimit] = {}
    #: How its queue is ordered between owners: one of ``owner_limits.OWNER_ORDERS``.
    owner_order: str = "none"
    #: How many GPU-hours its tasks may use in each period; None: any number.
    budget: Budget | None = None
    #: How many those of each owner may use, by owner; "default" is for all others.
    owner_budgets: dict[str, Budget] = {}
    #: Its named sets of nodes, each with a quota of its own among ``resources``, in the order in which tasks
    #: try them.
    flavors: tuple[Flavor, ...] = ()

    @property
    def has_budgets(self) -> bool:
        """Whether it limits what its tasks use over time."""
        return self.budget is not None or bool(self.owner_budgets)

    @property
    def counts_owners(self) -> bool:
        """Whether it matters who owns the tasks of the pool."""
        return bool(self.owner_limits) or self.is_fair

    @property
    def is_fair(self) -> bool:
        """Whether the owner comes first who has used least."""
        return self.owner_order == "fair"

    @property
    def plain_quota(self) -> Resources:
        """The quota of all flavors together, in plain kinds."""
        return without_flavors(self.resources, self.flavors) if self.flavors else self.resources

    def owner_limit(self, owner: str) -> OwnerLimit:
        """What the tasks of an owner may have of the pool."""
        return limit_of(self.owner_limits, owner)

    def run_limit(self, max_run_s: float | None) -> float | None:
        """Seconds that an attempt may run of a task that asks for so many, at most ``max_run_s`` of the pool;
        None: no limit.
        """
        limit_s = self.default_max_run_s if max_run_s is None else max_run_s
        if limit_s is None or self.max_run_s is None:
            return self.max_run_s if limit_s is None else limit_s
        return min(limit_s, self.max_run_s)

    def default_agent(self) -> Resources:
        """The resources of an agent that requests none: quota / target_agents, whole GPUs above 1. The quota
        of all flavors counts together.
        """
        quota = self.plain_quota
        if self.target_agents <= 0:
            return quota
        n = self.target_agents
        gpu = quota.gpu // n
        return Resources(
            cpu=quota.cpu // n,
            memory=quota.memory // n,
            gpu=gpu if gpu <= UNIT else gpu // UNIT * UNIT,
            custom=tuple((name, units // n) for name, units in quota.custom if units // n),
        )
