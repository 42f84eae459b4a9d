"""Which reasons are given where."""

from __future__ import annotations

from schedulemesh.domain.reasons import Reason

#: Given as ``reason`` of ``evaluate_preemption``; all but the last two are keys of ``turned_away``.
EVALUATION_REASONS = (
    Reason.PROTECTED_POOL,
    Reason.BEYOND_TOKEN,
    Reason.DOMINATES_BY_LABEL,
    Reason.BELOW_SAME_POOL_THRESHOLD,
    Reason.CROSS_POOL_DISABLED,
    Reason.BELOW_CROSS_POOL_THRESHOLD,
    Reason.PREEMPTED_TOO_OFTEN,
    Reason.IN_PREEMPTION_COOLDOWN,
    Reason.BELOW_MIN_RUNTIME,
    Reason.EXCEEDS_LOST_WORK_BUDGET,
    Reason.OWN_QUOTA,
    Reason.CAME_FIRST,
    Reason.BELOW_MIN_PREEMPT_SCORE,
    Reason.VETOED_BY_STRATEGY,
    Reason.ALREADY_BEING_PREEMPTED,
    Reason.WOULD_NOT_MAKE_ROOM,
    Reason.NO_RUNNING_TASKS,
    Reason.RESOURCES_AVAILABLE,
    Reason.STARTS_CANCELLED,
)

#: Given as ``reason`` of ``explain`` for a task that waits in the queue, beside codes of refusals.
QUEUE_REASONS = (
    Reason.HELD_BY_USER,
    Reason.DEPENDENCY,
    Reason.ARRAY_LIMIT,
    Reason.BACK_OFF,
    Reason.MEMBERS_ENDING,
    Reason.BEHIND_QUEUE_HEAD,
    Reason.HELD_FOR_QUEUE,
    Reason.BUDGET_SPENT,
    Reason.OWNER_LIMIT,
    Reason.BEHIND_OWNER,
    Reason.EXCEEDS_OWNER_LIMIT,
    Reason.INSUFFICIENT_QUOTA,
    Reason.INSUFFICIENT_RESOURCES,
    Reason.NODES_CORDONED,
    Reason.MAINTENANCE_WINDOW,
    Reason.NODE_RESERVED,
    Reason.EXTERNAL_RAY_WORK,
    Reason.QUOTA_ON_HOLD,
    Reason.QUOTA_ON_LOAN,
    Reason.COHORT_EXHAUSTED,
    Reason.GROUP_UNPLACEABLE,
    Reason.CLASS_NOT_LOADED,
    Reason.NEXT_SCHEDULING_PASS,
    Reason.EXCEEDS_POOL_CAPACITY,
    Reason.NO_FLAVOR,
    Reason.CLUSTER_OUT_OF_RESOURCES,
    Reason.EXTERNAL_DEMAND,
)

_OF_NO_REFUSAL = frozenset((*EVALUATION_REASONS, *QUEUE_REASONS)) - {
    Reason.ALREADY_BEING_PREEMPTED,
    Reason.HELD_FOR_QUEUE,
    Reason.BUDGET_SPENT,
    Reason.ARRAY_LIMIT,
    Reason.OWNER_LIMIT,
    Reason.EXCEEDS_OWNER_LIMIT,
    Reason.INSUFFICIENT_QUOTA,
    Reason.MAINTENANCE_WINDOW,
    Reason.NODE_RESERVED,
    Reason.GROUP_UNPLACEABLE,
    Reason.EXCEEDS_POOL_CAPACITY,
    Reason.NO_FLAVOR,
    Reason.CLUSTER_OUT_OF_RESOURCES,
    Reason.EXTERNAL_DEMAND,
}

#: Given as ``reason`` of a refused request.
REFUSALS = tuple(reason for reason in Reason if reason not in _OF_NO_REFUSAL)
