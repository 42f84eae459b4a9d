"""A plain loop over all running tasks that applies the preemption rules to each.

The reference for the engine, which decides per class of tasks. It shares no code with the engine and reads
only the tasks and the policy, so that equal results confirm the engine's.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.engine.state.tasks import RunningTask


class Candidate(NamedTuple):
    """A task that may be evicted; ascending order is best first."""

    negative_score: float
    negative_start: float
    task_id: str
    priority_delta: float
    effective_delta: float
    remaining: float
    reason: str


def plain_loop(
    tasks: Iterable[RunningTask], policy: PreemptionPolicy, query: PreemptionQuery, now: float
) -> list[Candidate]:
    """The best candidates, as many as the query's limit allows."""
    return heapq.nsmallest(query.limit, _candidates(tasks, policy, query, now))


def _candidates(tasks, policy, query, now):
    for task in tasks:
        allowed = _decide(task.spec, policy, query)
        if allowed is None:
            continue
        effective, reason = allowed
        remaining = 0.0
        if task.spec.estimated_duration is not None:
            ends_at = task.started_at + task.spec.estimated_duration
            remaining = max(0.0, ends_at - now)
        score = effective + policy.remaining_time_weight * remaining
        if score >= policy.min_preempt_score:
            yield Candidate(
                -score,
                -task.started_at,
                task.spec.task_id,
                query.priority - task.spec.priority,
                effective,
                remaining,
                reason,
            )


def _decide(running, policy, query):
    """The effective difference and the reason; None: this task may not be evicted."""
    delta = query.priority - running.priority
    same_pool = running.pool_name == query.pool_name
    if running.pool_name in policy.protected_pools and not same_pool:
        return None
    if policy.enable_label_preemption:
        rules = policy.label_preemption_rules
        over = _rank(rules, query.labels, running.labels)
        under = _rank(rules, running.labels, query.labels)
        if over and not under and max(delta, over) >= policy.label_priority_threshold:
            return max(delta, float(over)), "label_based_preemption"
        if under and not over and policy.label_dominance_protects:
            return None
    if same_pool:
        if delta >= policy.same_pool_priority_threshold:
            return delta, "same_pool_preemption"
    elif policy.enable_cross_pool_preemption and delta >= policy.cross_pool_priority_threshold:
        return delta, "cross_pool_preemption"
    return None


def _rank(rules, high: Mapping[str, str], low: Mapping[str, str]) -> int:
    """The highest rank by which any key of ``high`` dominates that of ``low``; 0: by none.

    A match is a rule that names the two values; its rank is the longest chain between them.
    """
    best = 0
    for key, of_key in rules.items():
        if key in high and key in low and low[key] in of_key.get(high[key], ()):
            best = max(best, _chain(of_key, high[key], low[key]))
    return best


def _chain(of_key, high: str, low: str) -> int:
    """The number of steps in the longest chain of rules from high down to low; 0: there is none."""
    longest = 0
    for value in of_key.get(high, ()):
        below = _chain(of_key, value, low)
        if below or value == low:
            longest = max(longest, 1 + below)
    return longest
