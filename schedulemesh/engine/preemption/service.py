"""Preemption by attained service: a task that has used little GPU time may evict those that have used much.

It needs the order ``two_level_las`` or ``multi_level_las``, and ``las_preempts``, in the policy of the queue:
then a task may evict running tasks of later levels (``savable`` says which, and in which order, which
``las_victims`` changes). Nobody is evicted for a task of the last level. No two tasks evict each other for
ever: each time, the one that was evicted must wait until the other has reached a later level than its own,
and there are only so many levels.

With ``last`` the victims are those that Tiresias takes (NSDI 2019): its queues have an order, the running
tasks of each are there in the order in which they began to run in it, then of their submission, and the last
ones of the last queue make room. How often they were evicted does not count.
"""

from __future__ import annotations

from collections.abc import Hashable

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.candidates import Order
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.savable import SavableTasks
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming
from schedulemesh.engine.state.tasks import RunningTask


def level_that_evicts(state: MeshState, task_id: str) -> int | None:
    """The level of a task that is submitted, or waits; None: it evicts nobody for that."""
    policy = state.queue.policy
    if not policy.las_preempts or not policy.las_limits_s:
        return None
    waiting = state.queue.by_id.get(task_id)
    level = 0 if waiting is None else policy.las_level(waiting.attempts.gpu_s)
    return level if level < len(policy.las_limits_s) else None


class LaterLevels(SavableTasks):
    """The running tasks of later levels than that of the incoming task."""

    reason = PreemptionReason.ATTAINED_SERVICE

    def __init__(
        self,
        state: MeshState,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None,
        limits: Limits,
        *,
        level: int,
    ) -> None:
        """``level``: that of the incoming task, which is not the last one."""
        super().__init__(state, incoming, now, veto, limits)
        self._queueing = state.queue.policy
        self._begins_s = self._queueing.las_limits_s[level]

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        return None if task.gpu_s(self._now) < self._begins_s else super().candidate_of(task)

    def _ready_at(self, task: RunningTask) -> float:
        ready_at = super()._ready_at(task)
        if ready_at == float("inf"):
            return ready_at
        left_s = self._begins_s - task.attempts.gpu_s
        return max(ready_at, task.started_at + left_s / task.resources.gpus)

    @property
    def _kind(self) -> tuple[Hashable, ...]:
        return (*super()._kind, self._begins_s)

    def _place(self, task: RunningTask) -> Order:
        tier, busy, evicted, gpu, started, task_id = super()._place(task)
        if self._queueing.las_victims == "most_service":
            return (tier, busy, evicted, -task.gpu_s(self._now), started, task_id)
        if self._queueing.las_victims == "last":
            level = self._queueing.las_level(task.gpu_s(self._now))
            since, number = self._since(task, level), float(task.number)
            return (tier, busy, -float(level), -since, -number, task_id)
        return (tier, busy, evicted, gpu, started, task_id)

    def _since(self, task: RunningTask, level: int) -> float:
        """Since when a task has run in its level, in this attempt."""
        if not level or not task.resources.gpu:
            return task.started_at
        left_s = self._queueing.las_limits_s[level - 1] - task.attempts.gpu_s
        return task.started_at + max(0.0, left_s / task.resources.gpus)
