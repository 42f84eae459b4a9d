"""Preemption by attained service: a task that has used little GPU time may evict those that have used much.

It needs the order ``two_level_las`` and ``las_preempts`` in the policy of the queue: then a task of the first
level may evict running tasks of the second (``savable`` says which; of those evicted least often the one that
has used most comes first). Nobody is evicted for a task of the second level, so no two tasks evict each other
for ever.

With ``promote_after_s`` a task that has waited for so long counts as one of the first level, as in the boost
of multi-level feedback queues. Once it runs, it is not evicted for others of the first level for as long.
"""

from __future__ import annotations

from collections.abc import Hashable

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.candidates import Order
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.savable import (
    SavableTasks,
    comes_first_for_its_wait,
    turn_ends_at,
)
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming
from schedulemesh.engine.state.tasks import RunningTask


def least_service_evicted(state: MeshState, task_id: str, now: float) -> float | None:
    """From how many used GPU-seconds on running tasks may be evicted for a task that is submitted, or waits;
    None: none may be for that.
    """
    policy = state.queue.policy
    if not policy.las_preempts:
        return None
    waiting = state.queue.by_id.get(task_id)
    used_s = 0.0 if waiting is None else waiting.attempts.gpu_s
    if comes_first_for_its_wait(state, task_id, now):
        used_s = 0.0
    return None if policy.las_level(used_s) else policy.las_limit_s


class SecondLevel(SavableTasks):
    """The running tasks of the second level."""

    reason = PreemptionReason.ATTAINED_SERVICE

    def __init__(
        self,
        state: MeshState,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None,
        limits: Limits,
        *,
        begins_s: float,
    ) -> None:
        """``begins_s``: with how many used GPU-seconds the level begins."""
        super().__init__(state, incoming, now, veto, limits)
        self._begins_s = begins_s

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        if task.gpu_s(self._now) < self._begins_s or turn_ends_at(self._state, task) > self._now:
            return None
        return super().candidate_of(task)

    def _ready_at(self, task: RunningTask) -> float:
        ready_at = super()._ready_at(task)
        if ready_at == float("inf"):
            return ready_at
        left_s = self._begins_s - task.attempts.gpu_s
        used_at = task.started_at + left_s / task.resources.gpus
        return max(ready_at, used_at, turn_ends_at(self._state, task))

    @property
    def _kind(self) -> tuple[Hashable, ...]:
        return (*super()._kind, self._begins_s)

    def _place(self, task: RunningTask) -> Order:
        tier, busy, evicted, _, started, task_id = super()._place(task)
        return (tier, busy, evicted, -task.gpu_s(self._now), started, task_id)
