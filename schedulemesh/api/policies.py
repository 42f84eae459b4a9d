"""The preemption policy, and the policy of the queue."""

from __future__ import annotations

from typing import Any, ClassVar, TypedDict

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import get
from schedulemesh.api.values import ClientName, Name


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
    allow_exec: bool
    topology_levels: list[str]
    priority_classes: dict[str, float]
    links: dict[str, str]


class PolicyChange(TypedDict, total=False):
    """One change of the policy: when (seconds since 1970), by which client (host:pid), and what."""

    timestamp: float
    client: str
    changes: PolicyFields
    preemption_aggressiveness: str | None


class QueuePolicyFields(TypedDict, total=False):
    """The policy of the queue as plain data; see QueuePolicy."""

    order: str
    ageing_per_hour: float
    las_threshold_gpu_hours: float
    las_preempts: bool
    shortest_preempts: bool
    promote_after_s: float
    backfill_limit_s: float
    waiting_weight: float
    waiting_weight_s: float
    estimates: bool
    on_impossible: str
    impossible_after_s: float


class ChangePolicy(ChangingCall, tag="change_policy", frozen=True, kw_only=True):
    """Change these fields of the policy."""

    changes: dict[str, Any]
    client: ClientName
    #: The word for all of them together, as ``preemption_aggressiveness``; None: none was given.
    level: Name | None = None


class GetPolicy(Call, tag="get_policy", frozen=True, kw_only=True):
    """Get the current policy and its most recent changes."""

    routes: ClassVar = (get("/policy", "Read the preemption policy and its most recent changes"),)


class ChangeQueuePolicy(ChangingCall, tag="change_queue_policy", frozen=True, kw_only=True):
    """Change these fields of the queue's policy."""

    changes: dict[str, Any]
    client: ClientName


class GetQueuePolicy(Call, tag="get_queue_policy", frozen=True, kw_only=True):
    """Get the current policy of the queue."""

    routes: ClassVar = (get("/queue_policy", "Read the policy of the queue"),)
