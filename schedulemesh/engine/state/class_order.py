"""How running tasks are ordered within their classes, and which are kept apart; what the orders of victims
differ in.
"""

from __future__ import annotations

import msgspec

from schedulemesh.config.policy import PreemptionPolicy


class VictimRanking(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an order of victims ranks candidates by; see ``engine.preemption.candidates``."""

    #: Which candidates come first, as `schedulemesh plugins` says it in English.
    summary: str
    #: Whether the priority of the running task comes before all else.
    priority_first: bool
    #: Whether lost work decides among the tasks of a group; else their preempt scores do.
    by_lost_work: bool


#: By the names of ``VICTIM_ORDERS``.
VICTIM_RANKINGS = {
    "score": VictimRanking(
        summary="Highest score first; the default.", priority_first=False, by_lost_work=False
    ),
    "priority_first": VictimRanking(
        summary="Lowest priority first, whatever time remains.",
        priority_first=True,
        by_lost_work=False,
    ),
    "least_lost_work": VictimRanking(
        summary="Least GPU-seconds since start or saved state first.",
        priority_first=False,
        by_lost_work=True,
    ),
}


class ClassOrder(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How tasks are ordered within classes, and which are kept apart: what follows from the policy."""

    #: Whether remaining time counts; where its weight is 0, no task is ``timed``.
    by_time: bool = True
    #: Whether the second order is by the work that an eviction would lose, instead of by start; then no
    #: task is ``timed`` either.
    by_lost_work: bool = False
    #: Seconds that a task runs before it may be evicted.
    min_runtime: float = 0.0
    #: Evictions after which a task is immune that names no number of its own.
    max_preemptions: int = PreemptionPolicy().max_preemptions
    #: Whether the policy limits the work that evictions lose.
    has_budget: bool = False

    @classmethod
    def of(cls, policy: PreemptionPolicy) -> ClassOrder:
        """The order that this policy asks for."""
        by_lost_work = VICTIM_RANKINGS[policy.victim_order].by_lost_work
        return cls(
            by_time=policy.remaining_time_weight > 0 and not by_lost_work,
            by_lost_work=by_lost_work,
            min_runtime=policy.min_runtime,
            max_preemptions=policy.max_preemptions,
            has_budget=policy.lost_work_budget > 0,
        )
