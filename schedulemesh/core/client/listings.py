"""Types of the results that describe what the scheduler has: pools, agents, tasks, nodes, policy, counts."""

from __future__ import annotations

from typing import Literal, TypedDict

from schedulemesh.core.client.cohort_listings import LendingDefinition, LoansInfo
from schedulemesh.core.client.external_results import ExternalJobInfo
from schedulemesh.core.client.results import AgentInfo, Result, SubmitResult, TaskInfo
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.user_data import UserValue


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
    #: "best_effort": what fits passes tasks that do not; "strict": nothing does.
    queueing: str
    #: None: the pool keeps no placement groups.
    pg_pool_config: dict[str, object] | None


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


class TaskListing(TaskInfo, total=False):
    """A task that holds resources, is registered, or waits in the queue; times are in seconds."""

    agent_name: str
    #: "agent", "gang", "lease" or "job".
    kind: str
    phase: str
    #: Since 1970; None: it does not run yet.
    started_at: float | None
    remaining_time: float
    last_metrics: dict[str, UserValue]
    #: Only of a task that waits in the queue; see QueueListing.
    position: int
    held: bool
    waiting_time: float


class TasksResult(Result, total=False):
    """The answer of ``list_tasks``."""

    tasks: list[TaskListing]


class SubmitManyResult(Result, total=False):
    """The answer of ``submit_many``; ``success`` is False if a submission was refused."""

    #: The answer to each submission, in their order.
    results: list[SubmitResult]
    #: How many were refused.
    refused: int


class QueueListing(TaskInfo, total=False):
    """A task that waits in the queue; times are in seconds."""

    #: The name that its agent will have.
    agent_name: str
    #: "agent", "gang", "lease" or "job".
    kind: str
    #: "queued".
    state: str
    #: How many tasks of its pool come before it, plus one.
    position: int
    #: Whether it does not start until it is released.
    held: bool
    #: Since it joined the queue.
    waiting_time: float
    #: When it joined the queue, and when it was first submitted, since 1970.
    queued_at: float
    arrived_at: float
    #: When it may start, since 1970; None: at once.
    not_before: float | None
    #: How often it was evicted.
    preemptions: int


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
    passing_limit_s: float
    waiting_weight: float
    waiting_weight_s: float


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
    idle_gpu_percent: float
    idle_gpu_s: float
    measured_progress: bool


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


class EvictorInfo(TypedDict, total=False):
    """For whom a task was evicted."""

    #: None: its agent was submitted without a task.
    task_id: str | None
    agent_name: str
    pool_name: str
    owner: str
    priority: float | None


class PreemptionRecord(TaskInfo, total=False):
    """A preemption; the fields of a task are those of the evicted one. Durations are seconds from the
    decision, None where that has not happened.
    """

    #: When the task had been evicted, in seconds since 1970; while it is being evicted, the decision.
    timestamp: float
    agent_name: str
    reason: str
    #: None: the task was preempted manually, without an evaluation.
    preempt_score: float | None
    #: Whether the state at the eviction is stored; ``get_saved_state`` returns it.
    state_saved: bool
    #: When the state was last saved, in seconds since 1970.
    saved_at: float | None
    save_error: str
    #: None: it was requested by a client.
    evictor: EvictorInfo | None
    #: The client that requested it (host:pid), if one did and said who it is.
    requested_by: str | None
    decided_at: float
    #: Seconds of work that were lost; while the task is being evicted, that would be.
    lost_work: float
    #: The same times the GPUs of its agent.
    lost_gpu_seconds: float
    time_to_evicted: float | None
    #: Until its agent had ended, so that its resources were free; None also where the agent stayed.
    time_to_freed: float | None
    #: Until the evictor's agent ran.
    time_to_start: float | None
    #: Whether the evictor started on what was freed; None: not known yet, or there is no evictor.
    used: bool | None
    #: Whether the evicted task joined the queue again.
    requeued: bool
    time_to_run_again: float | None
    idle_since: float | None


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


class SavedStateInfo(TaskInfo, total=False):
    """A task whose state is stored, or that was lost with its agent."""

    status: Literal["running", "preempted", "lost"]
    #: False: the task was lost before a state of it was saved.
    state_saved: bool


class SavedStatesResult(Result, total=False):
    """The answer of ``list_saved_states``."""

    saved_states: list[SavedStateInfo]


class OrphanInfo(TypedDict, total=False):
    """An actor or a placement group of the scheduler that its journal does not know."""

    #: In Ray.
    name: str
    #: Of an actor.
    namespace: str | None
    kind: Literal["actor", "placement group"]


class OrphansResult(Result, total=False):
    """The answer of ``list_orphans``."""

    orphans: list[OrphanInfo]


class EndedOrphans(Result, total=False):
    """The answer of ``end_orphans``: the names of the actors that were ended."""

    ended: list[str]


class NodeInfo(TypedDict, total=False):
    """A living node of the cluster."""

    node_id: str
    labels: dict[str, str]
    total: Amounts
    #: By the scheduler's own accounting.
    free: Amounts
    #: What Ray work that is not the scheduler's uses.
    external_usage: Amounts
    #: Who that is, as far as Ray knows; it keeps no record of what plain tasks hold.
    external_jobs: list[ExternalJobInfo]
    cordoned: bool
    draining: bool
    agents: list[str]


class NodesResult(Result, total=False):
    """The answer of ``cluster_snapshot``."""

    nodes: list[NodeInfo]


class StrategyInfo(TypedDict, total=False):
    """A strategy that the scheduler was made with, and how often it was called."""

    name: str
    hooks: list[str]
    calls: int
    failures: int
    slow_calls: int
    #: Why it is not called any more; empty: it is called.
    disabled: str


class StrategiesResult(Result, total=False):
    """The answer of ``strategies``."""

    strategies: list[StrategyInfo]
