"""What limits how often the tasks of running agents are evicted, whoever the incoming task is.

Tasks that were evicted often and tasks that have just started are limited by their classes
(``engine.state.tasks``). Two limits depend on what was evicted before, and are here:

- the cooldown: for some time after an eviction for a pool, none is made for that pool;
- the budget of lost work: in each pool, evictions may lose so many GPU-seconds of work per hour. What an
  eviction would lose is the time since the task's start or last saved state, times the GPUs of its agent.

A third one keeps the order of the queue: a task that waits there evicts none of its pool that have started
since because they came first, or the one that starts would be evicted a second later by the one that it has
passed. Its own quota an owner gets back all the same, and a task that is submitted now has been passed by
nobody.

Evictions that are requested by name are not limited. The work that they lose counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import floor, isfinite

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import LARGEST, QueuedTask, front_of
from schedulemesh.engine.state.tasks import RunningTask, TaskClass

_INFINITY = float("inf")


class Limits:
    """The limits on evictions for a task of one pool, at one time."""

    def __init__(
        self, state: MeshState, pool_name: str, now: float, waiting: QueuedTask | None = None
    ) -> None:
        #: ``waiting``: the incoming task where it waits in the queue; None: it is submitted now.
        self._state = state
        self._waiting = waiting if state.running.ordered else None
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

    @cached_property
    def came_first(self) -> frozenset[str]:
        """The running tasks that have started while the incoming one waited, because they came first in the
        order of the queue; of other pools those that were moved to the front or had waited for long. A task
        that has reached a later level of attained service since has had its turn.
        """
        waiting, state = self._waiting, self._state
        if waiting is None:
            return frozenset()
        entry, policy = state.queue.entry(waiting), state.queue.policy
        level = policy.las_level(waiting.attempts.gpu_s)
        task_ids = set()
        for task in map(state.running.by_id.__getitem__, state.running.ordered):
            agent = state.agents.get(task.agent_name)
            if agent is None or agent.admitted_at < waiting.queued_at or _place_of(task) >= entry:
                continue
            alike = task.spec.pool_name == waiting.pool_name
            if front_of(task) or (alike and policy.las_level(task.gpu_s(self._now)) <= level):
                task_ids.add(task.spec.task_id)
        return frozenset(task_ids)

    @property
    def priorities_that_pass(self) -> frozenset[float]:
        """The priorities with which the incoming task comes before one of these in the order of the queue, in
        hundredths; none where its priority does not decide about that.
        """
        waiting, queue = self._waiting, self._state.queue
        if waiting is None or not self.came_first or not queue.policy.counts_priority:
            return frozenset()
        aged = queue.entry(waiting)[0] + waiting.spec.priority
        running = map(self._state.running.by_id.__getitem__, self.came_first - self.put_first)
        ahead = (aged - _place_of(task)[0] for task in running)
        return frozenset(floor(beyond * 100 + 1) / 100 for beyond in ahead if isfinite(beyond))

    @property
    def put_first(self) -> frozenset[str]:
        """Those of them that came first because they were moved to the front, or had waited for long."""
        by_id = self._state.running.by_id
        return frozenset(task_id for task_id in self.came_first if front_of(by_id[task_id]))

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
        remaining = self._left.get(pool_name)
        if remaining is None:
            spent = self._state.evictions.lost_work_in(pool_name, self._now)
            remaining = self._left[pool_name] = max(0.0, budget - spent)
        return remaining


def _place_of(task: RunningTask) -> Entry:
    """The place in the queue from which a task has started."""
    value = task.order_value
    if value is None or value >= LARGEST:
        value = _INFINITY
    return (value, task.number, task.spec.task_id)
