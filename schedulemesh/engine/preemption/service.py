"""Preemption by attained service: a task that has used little GPU time may evict those that have used much.

It needs the order ``two_level_las`` and ``las_preempts`` in the policy of the queue: then a task of the first
level may evict running tasks of the second one (``savable`` says which, and in which order). A task that is
evicted waits in the second level, and nobody is evicted for it, so that no two evict each other for ever.
Tiresias (NSDI 2019) preempts like this at the borders of its levels.
"""

from __future__ import annotations

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.savable import SavableTasks
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask


def may_evict_second_level(state: MeshState, task_id: str) -> bool:
    """Whether tasks of the second level may be evicted for a task that is submitted, or waits."""
    policy = state.queue.policy
    if not policy.las_preempts or policy.order != "two_level_las":
        return False
    waiting = state.queue.by_id.get(task_id)
    return waiting is None or waiting.attempts.gpu_s < _threshold(policy)


class SecondLevel(SavableTasks):
    """The running tasks of the second level that a task of the first one may evict."""

    reason = PreemptionReason.ATTAINED_SERVICE

    def of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.of``."""
        if task.gpu_s(self._now) < _threshold(self._state.queue.policy):
            return None
        return super().of(task)


def _threshold(policy: QueuePolicy) -> float:
    """The GPU-seconds with which the second level begins."""
    return policy.las_threshold_gpu_hours * 3600.0
