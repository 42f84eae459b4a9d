"""Computes the lowest priority with which a refused submission would have been accepted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming

#: With more classes of running tasks than this it is not computed, because each try evaluates all of them.
MAX_CLASSES = 200


def sufficient_priority(
    state: MeshState,
    incoming: Incoming,
    victims: Callable[[float], Sequence[Candidate] | None],
    lowest_top: Callable[[], float],
    passes: Iterable[float] = (),
) -> float | None:
    """The lowest priority with which the task would fit; None: no priority is sufficient, or it is unknown.

    ``victims`` makes the complete decision for a priority and returns the victims, or None for a refusal. A
    higher priority never makes fewer tasks eligible, so the thresholds are searched by bisection, downwards
    from the priority that the victims found with the highest one require. ``lowest_top`` is asked after that:
    victims all of whose priorities are lower than this would not make room, so no lower threshold is tried
    than the first one at which a task of this priority may be evicted. ``passes``: further priorities at
    which some running task may become eligible.
    """
    if len(state.running.classes) > MAX_CLASSES:
        return None
    steps = _thresholds(state, incoming, passes)
    chosen = victims(steps[-1]) if steps else None
    if chosen is None:
        return None
    needed = max(
        (_above(c.priority, _least_delta(state, incoming, c)) for c in chosen), default=0.0
    )
    last = len(steps) - 1
    top = min(bisect_left(steps, needed), last) if chosen else last
    if top < last and victims(steps[top]) is None:
        # The victims are eligible then, but a reserved group is only for tasks of higher priority.
        top = last
    low = min(bisect_left(steps, _above(lowest_top(), _smallest_delta(state))), top)
    return steps[bisect_left(steps, True, low, top, key=lambda p: victims(p) is not None)]


def _smallest_delta(state: MeshState) -> float:
    """The difference of priority without which no task is evicted; none where label rules may replace it."""
    policy = state.policy
    if policy.enable_label_preemption and policy.label_preemption_rules:
        return -math.inf
    return min(policy.same_pool_priority_threshold, policy.cross_pool_priority_threshold)


def _least_delta(state: MeshState, incoming: Incoming, victim: Candidate) -> float:
    """The difference of priority that is certainly sufficient to evict this task."""
    policy, same_pool = state.policy, victim.pool_name == incoming.pool_name
    rule = (
        policy.same_pool_priority_threshold if same_pool else policy.cross_pool_priority_threshold
    )
    by_label = victim.reason is PreemptionReason.LABEL
    return max(policy.label_priority_threshold if by_label else rule, policy.min_preempt_score)


def _thresholds(state: MeshState, incoming: Incoming, passes: Iterable[float]) -> list[float]:
    """Every higher priority at which some running task may become eligible, ascending."""
    policy = state.policy
    priorities = set(passes)
    for task_class in state.running.occupied:
        same_pool = task_class.pool_name == incoming.pool_name
        rule = (
            policy.same_pool_priority_threshold
            if same_pool
            else policy.cross_pool_priority_threshold
        )
        for delta in (rule, policy.label_priority_threshold, policy.min_preempt_score):
            priorities.add(_above(task_class.priority, delta))
    account = state.ledger.accounts[incoming.pool_name]
    if account.spec.groups is not None:
        # At the limit a task may use a free reserved group if no entitled task waits; above it, any.
        limit = account.spec.groups.entitled_above
        priorities |= {limit, math.floor(limit) + 1.0}
    return sorted(priority for priority in priorities if priority > incoming.priority)


def _above(priority: float, delta: float) -> float:
    """The lowest number that exceeds a priority by at least ``delta``, despite rounding errors."""
    higher = priority + delta
    while higher - priority < delta:
        higher = math.nextafter(higher, math.inf)
    return higher
