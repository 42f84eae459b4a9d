"""Preemption by remaining time: a task may evict those that have more left to run than itself.

It needs an order by remaining time and ``shortest_preempts`` in the policy of the queue (``savable`` says
which tasks may be evicted). With the order ``shortest_remaining`` this is the shortest remaining processing
time rule of Schrage (1968); with ``shortest_service`` time counts once for each GPU, as in Tiresias (NSDI
2019). What a running task has left only decreases, and what a waiting one has left stays the same: so a task
that was evicted has more left than the one that evicted it for as long as both live, and no two evict each
other for ever. Only declared durations count here: tasks without one count as the longest, and evict nobody.

With ``promote_after_s`` a task that has waited for so long counts as one that has nothing left, and then runs
for as long before it is evicted for shorter ones.
"""

from __future__ import annotations

from schedulemesh.config.queueing import BY_REMAINING, QueuePolicy
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import FIRST_ATTEMPT, TaskSpec
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
from schedulemesh.engine.state.queued_tasks import scaled
from schedulemesh.engine.state.tasks import RunningTask

_INFINITY = float("inf")


def left_of_incoming(state: MeshState, task: TaskSpec, need: Resources, now: float) -> float | None:
    """What a task has left that is submitted, or waits; None: it evicts nobody for that."""
    policy = state.queue.policy
    if not policy.shortest_preempts or policy.order not in BY_REMAINING:
        return None
    if comes_first_for_its_wait(state, task.task_id, now):
        return 0.0
    waiting = state.queue.by_id.get(task.task_id)
    attempts = FIRST_ATTEMPT if waiting is None else waiting.attempts
    remaining = _left(task, attempts.ran_s, need, policy)
    return None if remaining == _INFINITY else remaining


def _left(task: TaskSpec, ran_s: float, resources: Resources, policy: QueuePolicy) -> float:
    """What a task has left that has run for so long; infinite where its duration is not declared."""
    declared = task.estimated_duration
    return scaled(_INFINITY if declared is None else max(0.0, declared - ran_s), resources, policy)


class LongerTasks(SavableTasks):
    """The running tasks that have more left than the incoming one, those that have most left first."""

    reason = PreemptionReason.MORE_LEFT

    def __init__(
        self,
        state: MeshState,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None,
        limits: Limits,
        *,
        remaining: float,
    ) -> None:
        """``remaining``: what the incoming task has left to run."""
        super().__init__(state, incoming, now, veto, limits)
        self._incoming_left = remaining

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        in_turn = turn_ends_at(self._state, task) > self._now
        if in_turn or self._left(task) <= self._incoming_left:
            return None
        return super().candidate_of(task)

    def _left(self, task: RunningTask) -> float:
        ran_s = task.attempts.ran_s + max(0.0, self._now - task.started_at)
        return _left(task.spec, ran_s, task.resources, self._state.queue.policy)

    def _place(self, task: RunningTask) -> Order:
        busy = task.agent_name not in self._running.idle
        gpu = float(task.resources.gpu)
        return (0.0, busy, -self._left(task), gpu, -task.started_at, task.spec.task_id)
