"""Types of the results that describe what the scheduler has: pools, agents, tasks, nodes, policy, counts."""

from __future__ import annotations

from typing import Literal, TypedDict

from schedulemesh.api.cluster import OrphanInfo, SchedulerAbout, StrategyInfo
from schedulemesh.api.jobs import JobListing
from schedulemesh.api.nodes import DrainInfo, ExternalWork, NodeInfo
from schedulemesh.api.pools import CohortInfo, PoolDefinition, PoolInfo
from schedulemesh.api.preemption import PreemptionRecord
from schedulemesh.api.queue import QueueListing
from schedulemesh.api.states import SavedStateInfo
from schedulemesh.api.tasks import TaskListing
from schedulemesh.client.results import AgentInfo, Result, SubmitResult
from schedulemesh.domain.resources import Amounts


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


class PoolResult(Result, total=False):
    """The answer of a call that creates or changes a pool."""

    pool: PoolDefinition
    #: Only for pools that keep placement groups.
    placement_groups: ReservedGroups


class PoolsResult(Result, total=False):
    """The answer of ``list_pools``."""

    pools: list[PoolInfo]


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


class GroupInfo(TypedDict, total=False):
    """One placement group."""

    id: str
    #: In Ray.
    name: str
    reserved: bool
    phase: str
    bundles: list[Amounts]
    placement_strategy: str
    node_ids: list[str]
    #: The agent that occupies it; None: it is free.
    agent: str | None
    #: Seconds since it became free; 0: it is not free.
    idle_s: float


class WarmHosts(TypedDict, total=False):
    """The warm hosts of a pool, and why no more are started."""

    ready: int
    starting: int
    errors: list[str]


class PoolGroups(GroupCounts, total=False):
    """The placement groups of one pool."""

    groups: list[GroupInfo]
    unplaced: list[UnplacedGroup]
    warm: WarmHosts


class GroupsResult(Result, GroupCounts, total=False):
    """The answer of ``pg_pool_stats``."""

    pools: dict[str, PoolGroups]


class AgentsResult(Result, total=False):
    """The answer of ``list_agents``."""

    agents: list[AgentInfo]


class HealthDetail(TypedDict, total=False):
    """What was found and done about one agent."""

    agent_name: str
    pool_name: str
    problem: Literal["dead", "silent"]
    action: Literal["rebuilt", "removed"]
    tasks: list[str]
    state_restored: bool
    #: Tasks that the rebuilt agent does not run.
    left_out: list[str]
    error: str


class HealthResult(Result, total=False):
    """The answer of ``ensure_agent_health``."""

    checked: int
    healthy: int
    rebuilt: list[str]
    removed: list[str]
    details: list[HealthDetail]


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
    #: The refusal of each task that was not cancelled, by its id.
    refused: dict[str, Result]


class QueuePolicyFields(TypedDict, total=False):
    """The policy of the queue as plain data; see QueuePolicy."""

    order: str
    ageing_per_hour: float
    las_threshold_gpu_hours: float
    las_levels_gpu_hours: list[float]
    las_preempts: bool
    las_smaller_first: bool
    shortest_preempts: bool
    las_victims: str
    promote_after_s: float
    passing_limit_s: float
    waiting_weight: float
    waiting_weight_s: float
    estimates: bool


class QueuePolicyResult(Result, total=False):
    """The answer of ``configure_queue`` and ``get_queue_policy``."""

    policy: QueuePolicyFields


class PolicyFields(TypedDict, total=False):
    """The preemption policy as plain data; see PreemptionPolicy."""

    same_pool_priority_threshold: float
    cross_pool_priority_threshold: float
    remaining_time_weight: float
    victim_order: str
    min_preempt_score: float
    enable_cross_pool_preemption: bool
    protected_pools: list[str]
    label_preemption_rules: dict[str, dict[str, list[str]]]
    label_priority_threshold: float
    enable_label_preemption: bool
    label_dominance_protects: bool
    cancel_timeout: float
    save_timeout: float
    start_timeout: float
    preemption_grace_s: float
    min_runtime: float
    max_preemptions: int
    preemption_cooldown: float
    lost_work_budget: float
    usage_half_life_s: float
    reclaim_unsavable: bool
    defragment_after_s: float
    idle_gpu_percent: float
    idle_gpu_s: float
    measured_progress: bool
    over_claim: str
    over_claim_s: float
    evict_despite_external_demand: bool


class PolicyUpdate(Result, PolicyFields, total=False):
    """The answer of ``update_preemption_policy``: the whole policy, under ``policy`` and beside it."""

    policy: PolicyFields


class PolicyChange(TypedDict, total=False):
    """One change of the policy: when (seconds since 1970), by which client (host:pid), and what."""

    timestamp: float
    client: str
    changes: PolicyFields
    preemption_aggressiveness: str | None


class PolicyResult(Result, total=False):
    """The answer of ``get_preemption_policy``; ``changes`` are ordered from oldest to newest."""

    policy: PolicyFields
    changes: list[PolicyChange]


class PreemptionsResult(Result, total=False):
    """The answer of ``list_preemptions``, ordered from oldest to newest."""

    preemptions: list[PreemptionRecord]


class PreemptionStats(Result, total=False):
    """The answer of ``get_preemption_stats``; ``recent_preemptions`` are ordered from oldest to newest."""

    total_preemptions: int
    same_pool_preemptions: int
    cross_pool_preemptions: int
    label_preemptions: int
    #: Evictions by which pools got back quota that they had lent.
    reclaims: int
    running_tasks: int
    #: Evicted tasks that joined the queue again.
    requeued_preemptions: int
    #: The same counts by the reason of the eviction.
    preemptions_by_reason: dict[str, int]
    requeues_by_reason: dict[str, int]
    recent_preemptions: list[PreemptionRecord]


class Stats(PreemptionStats, total=False):
    """The answer of ``stats``: the preemption counts, the pools by name, and how many agents and nodes."""

    pools: dict[str, PoolInfo]
    agents: int
    nodes: int


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


class StrategiesResult(Result, total=False):
    """The answer of ``strategies``."""

    strategies: list[StrategyInfo]


class ExternalUsageResult(Result, total=False):
    """The answer of ``external_usage``."""

    jobs: list[ExternalWork]


class DrainStatus(Result, total=False):
    """The answer of ``drain_status``."""

    drains: list[DrainInfo]


class CohortsResult(Result, total=False):
    """The answer of ``list_cohorts``."""

    cohorts: list[CohortInfo]


class JobsResult(Result, total=False):
    """The answer of ``jobs``."""

    jobs: list[JobListing]


class AboutResult(Result, SchedulerAbout, total=False):
    """The answer of ``about``."""

    pools: int
    agents: int
    running_tasks: int
    queued_tasks: int


class HeadHealth(AboutResult, total=False):
    """The answer of ``ScheduleMeshHead.start`` and ``health``."""

    alive: bool
    #: Whether its name is taken, so that it can be stopped; only where it is not alive.
    registered: bool


class HeadStopped(Result, total=False):
    """The answer of ``ScheduleMeshHead.stop``."""

    already_gone: bool
