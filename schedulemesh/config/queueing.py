"""The policy of the queue: in which order waiting tasks are served, and how they age."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from schedulemesh.config.changes import with_changes
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import as_seconds, parse_flag, parse_number
from schedulemesh.errors import InvalidRequestError, shown

#: See QueuePolicy.order.
ORDERS = (
    "priority",
    "fifo",
    "shortest_remaining",
    "shortest_service",
    "two_level_las",
    "dominant_share",
)
#: See QueuePolicy.on_impossible.
ON_IMPOSSIBLE = ("skip", "cancel")
#: Those by what tasks still have to run.
BY_REMAINING = ("shortest_remaining", "shortest_service")

#: No rate is higher: a priority that rises by more than the whole range of priorities in an hour.
_MAX_RATE = 1e9
_MAX_GPU_HOURS = 1e9
_MAX_PATIENCE_S = 1e10
_MAX_WAITING_WEIGHT = 1e3


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """In which order waiting tasks are served. Always valid; a change is a new policy."""

    #: "priority": highest priority, ageing included. "fifo": first submitted. "shortest_remaining": least
    #: remaining time; "shortest_service": least remaining time times GPUs; in both tasks without an estimate
    #: come last. "two_level_las": tasks that have used fewer GPU-hours than the threshold first (least
    #: attained service), and within both those with fewer GPUs. "dominant_share": the pool first that uses
    #: the smallest share of its dominant resource.
    order: str = "priority"
    #: By how much waiting for an hour raises a priority; for the order alone, never for preemption.
    ageing_per_hour: float = 0.0
    #: The threshold of "two_level_las".
    las_threshold_gpu_hours: float = 8.0
    #: Whether with that order a task that has used less than the threshold may evict running tasks that have
    #: used more, of its own pool or on borrowed quota, whatever the priorities; not those that cannot save
    #: their state. Of those evicted least often the one that has used most comes first.
    las_preempts: bool = False
    #: After how many seconds of waiting a task comes before all that have waited less, whatever the order;
    #: the one first submitted first. With ``las_preempts`` or ``shortest_preempts`` it evicts as one that has
    #: used nothing or has nothing left, and for as long is not evicted for these two reasons. 0: no task
    #: does.
    promote_after_s: float = 0.0
    #: Whether with "shortest_remaining" and "shortest_service" a task may evict running tasks that have more
    #: left than itself, of its own pool or on borrowed quota, whatever the priorities; not those that cannot
    #: save their state.
    shortest_preempts: bool = False
    #: Seconds for which later tasks are backfilled before the first one of a ``best_effort`` pool where
    #: nothing is known about when it can start. Journals call it by the name that it had in format 3.
    backfill_limit_s: float = msgspec.field(default=3600.0, name="passing_limit_s")
    #: How much more a pool weighs where pools are compared by their shares, once its first task has waited
    #: for ``waiting_weight_s`` seconds: 0.5 is half as much again. It grows in proportion to the wait until
    #: then, and no further.
    waiting_weight: float = 0.0
    waiting_weight_s: float = 3600.0
    #: Whether the durations of earlier runs stand in where none is declared: for reserved starts, for
    #: backfill, and for the order by remaining time.
    estimates: bool = False
    #: What becomes of the first tasks of a pool that have become impossible: they could not start even if
    #: nothing else ran, because their pool was made smaller, say, or the only large node has left. "skip":
    #: they wait. Where the pool could not hold them, those behind start as if they were not there; where a
    #: node is missing, a strict pool waits for it. "cancel": they are cancelled after ``impossible_after_s``.
    on_impossible: str = "skip"
    #: Seconds for which they wait all the same, as a node may be away for a moment only, and an autoscaler
    #: needs some minutes to bring one.
    impossible_after_s: float = 300.0

    @property
    def orders_by_estimates(self) -> bool:
        """Whether the order depends on estimates."""
        return self.estimates and self.order in BY_REMAINING

    @property
    def is_by_priority(self) -> bool:
        """Whether within a pool the highest priority comes first, apart from tasks that were put first."""
        return self.counts_priority and not self.ageing_per_hour

    @property
    def counts_priority(self) -> bool:
        """Whether a higher priority puts a task further to the front."""
        return self.order in ("priority", "dominant_share")

    @property
    def ordering(self) -> tuple[Hashable, ...]:
        """What the order values of tasks depend on: with another one they are not compared."""
        return (
            self.order,
            self.ageing_per_hour,
            self.las_limit_s,
            self.orders_by_estimates,
        )

    @property
    def las_limit_s(self) -> float | None:
        """With how many used GPU-seconds the second level begins; None: the order has no levels."""
        return self.las_threshold_gpu_hours * 3600.0 if self.order == "two_level_las" else None

    def las_level(self, gpu_s: float) -> int:
        """The level of a task that has used so many GPU-seconds: 0, which is served first, or 1."""
        limit_s = self.las_limit_s
        return int(limit_s is not None and gpu_s >= limit_s)

    def raise_of(self, waited_s: float) -> float:
        """By which factor the weight of a pool is raised whose first task has waited so long: 1.0 to
        1.0 + ``waiting_weight``. The wait counts as in the age factor of Slurm's multifactor priority,
        min(1, wait / PriorityMaxAge).
        """
        if not self.waiting_weight or waited_s <= 0.0:
            return 1.0
        part = waited_s / self.waiting_weight_s if waited_s < self.waiting_weight_s else 1.0
        return 1.0 + self.waiting_weight * part

    def public(self) -> dict[str, Any]:
        """Every field as plain data: numbers and texts."""
        return msgspec.structs.asdict(self)

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        order = as_text(self.order)
        if order not in ORDERS:
            raise InvalidRequestError(
                f"order is {shown(self.order)}; allowed are {', '.join(ORDERS)}"
            )
        force(self, "order", order)
        for flag in ("las_preempts", "shortest_preempts", "estimates"):
            force(self, flag, parse_flag(getattr(self, flag), flag))
        on_impossible = as_text(self.on_impossible)
        if on_impossible not in ON_IMPOSSIBLE:
            raise InvalidRequestError(
                f"on_impossible is {shown(self.on_impossible)}; allowed are {', '.join(ON_IMPOSSIBLE)}"
            )
        force(self, "on_impossible", on_impossible)
        for name, most in (
            ("ageing_per_hour", _MAX_RATE),
            ("las_threshold_gpu_hours", _MAX_GPU_HOURS),
            ("promote_after_s", _MAX_PATIENCE_S),
            ("backfill_limit_s", _MAX_PATIENCE_S),
            ("impossible_after_s", _MAX_PATIENCE_S),
            ("waiting_weight", _MAX_WAITING_WEIGHT),
            ("waiting_weight_s", _MAX_PATIENCE_S),
        ):
            value = getattr(self, name)
            value = as_seconds(value, name) if name.endswith("_s") else value
            force(self, name, parse_number(value, name, 0.0, most))


def changed_queue_policy(policy: QueuePolicy, changes: dict[str, Any]) -> QueuePolicy:
    """The policy with these fields changed. Raises InvalidRequestError for unknown fields and bad values."""
    return with_changes(policy, changes, "the policy of the queue")
