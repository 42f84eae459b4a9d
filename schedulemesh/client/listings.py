"""Types of the results that describe what the scheduler has: pools, agents, tasks, nodes, policy, counts."""

from __future__ import annotations

from schedulemesh.api.agents import HealthReport
from schedulemesh.api.arrays import ArrayInfo
from schedulemesh.api.cluster import OrphanInfo, SchedulerFigures, SchedulerStats, StrategyInfo
from schedulemesh.api.jobs import JobListing
from schedulemesh.api.nodes import DrainInfo, ExternalWork, NodeInfo, NodeName
from schedulemesh.api.policies import PolicyChange, PolicyFields, QueuePolicyFields
from schedulemesh.api.pools import (
    AllGroups,
    BudgetInfo,
    CohortInfo,
    PoolDefinition,
    PoolInfo,
    ReservedGroups,
    ShareInfo,
)
from schedulemesh.api.preemption import PreemptionCounts, PreemptionRecord
from schedulemesh.api.queue import QueueListing
from schedulemesh.api.results import Result
from schedulemesh.api.states import SavedStateInfo
from schedulemesh.api.tasks import TaskListing
from schedulemesh.api.windows import WindowInfo
from schedulemesh.client.results import AgentInfo, SubmitResult


class PoolResult(Result, total=False):
    """The answer of a call that creates or changes a pool."""

    pool: PoolDefinition
    #: Only for pools that keep placement groups.
    placement_groups: ReservedGroups


class PoolsResult(Result, total=False):
    """The answer of ``list_pools``."""

    pools: list[PoolInfo]


class GroupsResult(Result, AllGroups, total=False):
    """The answer of ``pg_pool_stats``."""


class AgentsResult(Result, total=False):
    """The answer of ``list_agents``."""

    agents: list[AgentInfo]


class HealthResult(Result, HealthReport, total=False):
    """The answer of ``ensure_agent_health``."""


class ArrayResult(Result, ArrayInfo, total=False):
    """The answer of ``array``."""


class TasksResult(Result, total=False):
    """The answer of ``list_tasks``."""

    tasks: list[TaskListing]


class SubmitManyResult(Result, total=False):
    """The answer of ``submit_many``; ``success`` is False if a submission was refused."""

    #: The answer to each submission, in their order.
    results: list[SubmitResult]
    #: How many were refused.
    refused: int


class QueueResult(Result, total=False):
    """The answer of ``list_queue``."""

    tasks: list[QueueListing]
    #: How many tasks wait, those that are not listed included.
    total: int


class CancellationResult(Result, total=False):
    """The answer of ``cancel_tasks``; ``success`` is False if one was not cancelled."""

    cancelled: list[str]
    #: Those of them that had ended before.
    already_ended: list[str]
    #: The refusal of each task that was not cancelled, by its id.
    refused: dict[str, Result]


class QueuePolicyResult(Result, total=False):
    """The answer of ``configure_queue`` and ``get_queue_policy``."""

    policy: QueuePolicyFields


class PolicyUpdate(Result, PolicyFields, total=False):
    """The answer of ``update_preemption_policy``: the whole policy, under ``policy`` and beside it."""

    policy: PolicyFields


class PolicyResult(Result, total=False):
    """The answer of ``get_preemption_policy``; ``changes`` are ordered from oldest to newest."""

    policy: PolicyFields
    changes: list[PolicyChange]


class PreemptionsResult(Result, total=False):
    """The answer of ``list_preemptions``, ordered from oldest to newest."""

    preemptions: list[PreemptionRecord]


class PreemptionStats(Result, PreemptionCounts, total=False):
    """The answer of ``get_preemption_stats``."""


class Stats(Result, SchedulerStats, total=False):
    """The answer of ``stats``."""


class SavedStatesResult(Result, total=False):
    """The answer of ``list_saved_states``."""

    saved_states: list[SavedStateInfo]


class OrphansResult(Result, total=False):
    """The answer of ``list_orphans``."""

    orphans: list[OrphanInfo]


class EndedOrphans(Result, total=False):
    """The answer of ``end_orphans``: the names of the actors that were ended."""

    ended: list[str]


class NodesResult(Result, total=False):
    """The answer of ``cluster_snapshot``."""

    nodes: list[NodeInfo]


class NodeNamesResult(Result, total=False):
    """The answer of ``node_names``."""

    nodes: list[NodeName]


class StrategiesResult(Result, total=False):
    """The answer of ``strategies``."""

    strategies: list[StrategyInfo]


class ExternalUsageResult(Result, total=False):
    """The answer of ``external_usage``."""

    jobs: list[ExternalWork]


class DrainStatus(Result, total=False):
    """The answer of ``drain_status``."""

    drains: list[DrainInfo]


class WindowsResult(Result, total=False):
    """The answer of ``list_windows``."""

    windows: list[WindowInfo]


class CohortsResult(Result, total=False):
    """The answer of ``list_cohorts``."""

    cohorts: list[CohortInfo]


class SharesResult(Result, total=False):
    """The answer of ``shares``."""

    shares: list[ShareInfo]


class BudgetsResult(Result, total=False):
    """The answer of ``budgets``."""

    budgets: list[BudgetInfo]


class JobsResult(Result, total=False):
    """The answer of ``jobs``."""

    jobs: list[JobListing]


class AboutResult(Result, SchedulerFigures, total=False):
    """The answer of ``about``."""


class HeadHealth(AboutResult, total=False):
    """The answer of ``ScheduleMeshHead.start`` and ``health``."""

    alive: bool
    #: Whether its name is taken, so that it can be stopped; only where it is not alive.
    registered: bool


class HeadStopped(Result, total=False):
    """The answer of ``ScheduleMeshHead.stop``."""

    already_gone: bool
