"""The policy of the queue: in which order waiting tasks are served, and how they age."""

from __future__ import annotations

from typing import Any

import msgspec

from schedulemesh.config.changes import with_changes
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import parse_flag, parse_number
from schedulemesh.errors import InvalidRequestError, shown

#: See QueuePolicy.order.
ORDERS = ("priority", "fifo", "shortest_remaining", "two_level_las", "dominant_share")

#: No rate is higher: a priority that rises by more than the whole range of priorities in an hour.
_MAX_RATE = 1e9
_MAX_GPU_HOURS = 1e9
_MAX_PATIENCE_S = 1e10
_MAX_WAITING_WEIGHT = 1e3


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """In which order waiting tasks are served. Always valid; a change is a new policy."""

    #: "priority": highest priority, ageing included. "fifo": first submitted. "shortest_remaining": least
    #: remaining time; tasks without an estimate come last. "two_level_las": tasks that have used fewer
    #: GPU-hours than the threshold first, within a level those with fewer GPUs (least attained service).
    #: "dominant_share": the pool first that uses the smallest share of its dominant resource.
    order: str = "priority"
    #: By how much waiting for an hour raises a priority; for the order alone, never for preemption.
    ageing_per_hour: float = 0.0
    #: The threshold of "two_level_las".
    las_threshold_gpu_hours: float = 8.0
    #: Whether with "two_level_las" tasks of the first level may evict running tasks of the second one, of
    #: their own pool or on borrowed quota, whatever the priorities; not those that cannot save their state.
    las_preempts: bool = False
    #: Seconds for which later tasks may pass the first one of a ``best_effort`` pool where nothing is known
    #: about when it can start.
    passing_limit_s: float = 3600.0
    #: How much more a pool weighs where pools are compared by their shares, once its first task has waited
    #: for ``waiting_weight_s`` seconds: 0.5 is half as much again. It grows in proportion to the wait until
    #: then, and no further.
    waiting_weight: float = 0.0
    waiting_weight_s: float = 3600.0

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
        """The fields by name."""
        return msgspec.structs.asdict(self)

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        order = as_text(self.order)
        if order not in ORDERS:
            raise InvalidRequestError(
                f"order is {shown(self.order)}; allowed are {', '.join(ORDERS)}"
            )
        force(self, "order", order)
        force(self, "las_preempts", parse_flag(self.las_preempts, "las_preempts"))
        for name, most in (
            ("ageing_per_hour", _MAX_RATE),
            ("las_threshold_gpu_hours", _MAX_GPU_HOURS),
            ("passing_limit_s", _MAX_PATIENCE_S),
            ("waiting_weight", _MAX_WAITING_WEIGHT),
            ("waiting_weight_s", _MAX_PATIENCE_S),
        ):
            force(self, name, parse_number(getattr(self, name), name, 0.0, most))


def changed_queue_policy(policy: QueuePolicy, changes: dict[str, Any]) -> QueuePolicy:
    """The policy with these fields changed. Raises InvalidRequestError for unknown fields and bad values."""
    return with_changes(policy, changes, "the policy of the queue")
