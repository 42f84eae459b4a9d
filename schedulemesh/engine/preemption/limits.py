"""What limits how often the tasks of running agents are evicted, whoever the incoming task is.

Tasks that were evicted often and tasks that have just started are limited by their classes
(``engine.state.tasks``). Two limits depend on what was evicted before, and are here:

- the cooldown: for some time after an eviction for a pool, none is made for that pool;
- the budget of lost work: in each pool, evictions may lose so many GPU-seconds of work per hour. What an
  eviction would lose is the time since the task's start or last saved state, times the GPUs of its agent.

Evictions that are requested by name are not limited. The work that they lose counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask, TaskClass

_INFINITY = float("inf")


class Limits:
    """The limits on evictions for a task of one pool, at one time."""

    def __init__(self, state: MeshState, pool_name: str, now: float) -> None:
        self._state = state
        self._policy: PreemptionPolicy = state.policy
        self._now = now
        #: GPU-seconds left, by pool; those asked for so far.
        self._left: dict[str, float] = {}
        last = state.evictions.last_for.get(pool_name)
        #: Whether no task may be evicted for the pool now.
        self.cooling = last is not None and now - last < self._policy.preemption_cooldown
        #: How long none of this changes while the state stays as it is.
        self.until = _INFINITY
        if self._policy.lost_work_budget:
            self.until = now
        elif self.cooling and last is not None:
            self.until = last + self._policy.preemption_cooldown
        #: Whether classes have to be asked which of their tasks are spared.
        self.any_per_task = self._policy.min_runtime > 0 or self._policy.lost_work_budget > 0

    def evictable(self, task_class: TaskClass) -> int:
        """How many tasks of the class are spared neither for their run time nor for their lost work."""
        if task_class.is_stale(self._now):
            task_class.advance(self._now)
        return len(task_class) - len(task_class.young) - self.losing_too_much(task_class)

    def losing_too_much(self, task_class: TaskClass) -> int:
        """How many tasks of the class would lose more work than the budget leaves; after ``advance``."""
        if not task_class.since or not task_class.resources.gpu:
            return 0
        most = self._most_lost(task_class.pool_name, task_class.resources.gpus)
        return task_class.losing_more(most, self._now)

    def spares(self, task: RunningTask) -> bool:
        """Whether the task may not be evicted, for its run time or for its lost work."""
        return self.is_young(task) or self.is_beyond_budget(task)

    def is_young(self, task: RunningTask) -> bool:
        """Whether the task may not be evicted yet, for its run time."""
        return task.started_at + self._policy.min_runtime > self._now

    def is_beyond_budget(self, task: RunningTask) -> bool:
        """Whether the task would lose more work than the budget leaves."""
        if not self._policy.lost_work_budget or not task.resources.gpu:
            return False
        return task.lost_work(self._now) > self._most_lost(task.spec.pool_name, task.resources.gpus)

    def narrow(self, victims: Iterable[Candidate]) -> bool:
        """Whether these victims together lose more than the budget of a pool leaves. Then from now on only
        those tasks of that pool may be evicted that lose no work.
        """
        if not self._policy.lost_work_budget:
            return False
        lost: dict[str, float] = {}
        for victim in victims:
            gpus = self._state.running.by_id[victim.task_id].resources.gpus
            lost[victim.pool_name] = lost.get(victim.pool_name, 0.0) + victim.lost_work * gpus
        over = [pool for pool, gpu_s in lost.items() if gpu_s > self._left_in(pool)]
        self._left.update(dict.fromkeys(over, 0.0))
        return bool(over)

    def _most_lost(self, pool_name: str, gpus: float) -> float:
        """The seconds of work that one task on so many GPUs may lose."""
        return self._left_in(pool_name) / gpus

    def _left_in(self, pool_name: str) -> float:
        """The GPU-seconds of work that evictions of this pool's tasks may still lose."""
        budget = self._policy.lost_work_budget
        if not budget:
            return _INFINITY
        left = self._left.get(pool_name)
        if left is None:
            spent = self._state.evictions.lost_work_in(pool_name, self._now)
            left = self._left[pool_name] = max(0.0, budget - spent)
        return left
