"""Which running tasks keep their work when they are evicted, and may be evicted for the good of all.

Three reasons allow an eviction without any difference of priority: the incoming task has attained less
service (``service``), it has less left to run (``shortest``), or it is larger and the others fit elsewhere
(``moves``). All concern tasks that can save their state and join the queue again, of the incoming task's own
pool, and of other pools of its tree of cohorts those that run on borrowed quota alone; none concerns

1. tasks of a protected pool, where it is not the incoming task's own;
2. tasks that were evicted as often as they may be;
3. tasks that the limits spare (``limits``), and those that a strategy keeps (``veto``).

They stand in this order:

1. those whose GPUs are idle;
2. those that were evicted least often, so that it is not always the same task;
3. those with the fewest GPUs, because no more is to be evicted than is needed;
4. the newest start;
5. the lower task id.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import ClassVar

from schedulemesh.domain.payloads import JobPayload, LeasePayload
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.candidates import Order
from schedulemesh.engine.preemption.gpu_bound import GpuBound
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.ranked import RankedCandidates
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.long_waits import PROMOTED
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming, Verdict
from schedulemesh.engine.state.queued_tasks import front_of
from schedulemesh.engine.state.tasks import RunningTask, TaskClass


def can_be_saved(state: MeshState, agent: Agent) -> bool:
    """Whether an eviction keeps the work of an agent: it runs, and itself or its pool saves states; or it is
    a job or a lease that has saved something in any of its attempts.
    """
    if not isinstance(agent.phase, Running):
        return False
    if not isinstance(agent.spec.payload, (JobPayload, LeasePayload)):
        return saves_states(state, agent)
    tasks = map(state.running.by_id.__getitem__, state.running.on_agent(agent.spec.name))
    return any(task.saved_at is not None or task.attempts.has_saved for task in tasks)


def saves_states(state: MeshState, agent: Agent) -> bool:
    """Whether an agent that has run saves its state when it is asked to, or its pool does."""
    if agent.process is None:
        return False
    if "save_state" in agent.process.capabilities:
        return True
    handlers = state.handlers.get(agent.spec.pool_name)
    return handlers is not None and handlers.preserver_key is not None


def comes_first_for_its_wait(state: MeshState, task_id: str, now: float) -> bool:
    """Whether a task that waits was put first and has waited for ``promote_after_s``."""
    waiting, limit_s = state.queue.by_id.get(task_id), state.queue.policy.promote_after_s
    if waiting is None or not waiting.front or not limit_s:
        return False
    return waiting.queued_at + limit_s <= now


def turn_ends_at(state: MeshState, task: RunningTask) -> float:
    """Until when a task that was put first is not evicted because of the order of the queue: it runs for as
    long as a task waits before it comes first, so that it makes progress however many tasks come before it.
    """
    return task.started_at + state.queue.policy.promote_after_s if front_of(task) else 0.0


def _still_first(state: MeshState, task_ids: frozenset[str], now: float) -> frozenset[str]:
    """Those of the tasks put first that were moved to the front, or whose turn after a long wait goes on."""
    if not state.queue.policy.promote_after_s:
        return task_ids
    tasks = map(state.running.by_id.__getitem__, task_ids)
    return frozenset(
        task.spec.task_id
        for task in tasks
        if front_of(task) > PROMOTED or turn_ends_at(state, task) > now
    )


class SavableTasks(RankedCandidates):
    """The tasks that such an eviction may concern; subclasses say for which of them there is a reason."""

    #: The reason of the evictions.
    reason: ClassVar[PreemptionReason]
    may_grow = True
    #: Whether agents in placement groups may be victims.
    in_groups: ClassVar[bool] = True

    def __init__(
        self,
        state: MeshState,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None,
        limits: Limits,
    ) -> None:
        super().__init__(state.preemption, state.running, incoming, now, veto, limits)
        self._came_first = _still_first(state, limits.put_first, now)
        self._state = state
        #: Whether tasks of a class may be evicted, as far as that was asked.
        self._may_leave_by_class: dict[TaskClass, bool] = {}

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        agent = self._state.agents.get(task.agent_name)
        if agent is None or not can_be_saved(self._state, agent):
            return None
        return (
            super().candidate_of(task) if returns_when_evicted(self._state, task, agent) else None
        )

    def no_room_until(self, shape: GroupShape) -> float | None:
        """Until when the nodes have too few GPUs even without all tasks that may be evicted, while the state
        stays as it is; None: they may have enough. See ``gpu_bound``.
        """
        bound = GpuBound(
            self._state, self._now, self._kind, self._ready_at, in_groups=self.in_groups
        )
        return bound.no_room_until(shape)

    @property
    def _kind(self) -> tuple[Hashable, ...]:
        """See ``GpuBound``."""
        incoming = self._incoming
        return (self.reason, incoming.pool_name, incoming.neighbours, self._cooling)

    def _ready_at(self, task: RunningTask) -> float:
        """When a task may be evicted, as far as its class and its own times say; infinite: never."""
        task_class = task.task_class
        if task_class is None or not task.resources.gpu:
            return float("inf")
        may_leave = self._may_leave_by_class.get(task_class)
        if may_leave is None:
            may_leave = self._judge(task_class).rule is not None
            self._may_leave_by_class[task_class] = may_leave
        return task.started_at + self._policy.min_runtime if may_leave else float("inf")

    @cached_property
    def tiers(self) -> dict[TaskClass, float]:
        """The classes; none comes before another."""
        return dict.fromkeys(self.allowed, 0.0)

    def tier_of(self, _tasks: Sequence[Candidate]) -> float:
        """See ``Candidates.tier_of``."""
        return 0.0

    def _place(self, task: RunningTask) -> Order:
        busy = task.agent_name not in self._running.idle
        evicted, gpu = float(task.attempts.preemptions), float(task.resources.gpu)
        return (0.0, busy, evicted, gpu, -task.started_at, task.spec.task_id)

    def _judge_all(self) -> list[tuple[TaskClass, Verdict]]:
        classes = (c for c in self._running.occupied if c.resources.gpu)
        return [(task_class, self._judge(task_class)) for task_class in classes]

    def _judge(self, task_class: TaskClass) -> Verdict:
        incoming, pool_name = self._incoming, task_class.pool_name
        if self._cooling:
            return Verdict(refused=Reason.IN_PREEMPTION_COOLDOWN)
        if task_class.immune:
            return Verdict(refused=Reason.PREEMPTED_TOO_OFTEN)
        if pool_name != incoming.pool_name:
            if self._policy.protects(pool_name):
                return Verdict(refused=Reason.PROTECTED_POOL)
            borrows = task_class.payers and pool_name not in task_class.payers
            if pool_name not in incoming.neighbours or not borrows:
                return Verdict(refused=Reason.OWN_QUOTA)
        delta = incoming.priority - task_class.priority
        return Verdict(rule=self.reason, delta=delta)


def returns_when_evicted(state: MeshState, task: RunningTask, agent: Agent) -> bool:
    """Whether an evicted task joins the queue again: it asks for it, and can be started again."""
    spec = agent.spec
    if not task.number or not spec.class_key or not spec.restartable:
        return False
    if spec.pool_name in state.drains.ending:
        return False
    if task.reached_limit:
        by_time = task.evicted_by is PreemptionReason.TIME_LIMIT
        return by_time and task.spec.on_time_limit == "requeue"
    if task.is_drained:
        return task.spec.on_preempted != "drop"
    pool = state.ledger.accounts.get(spec.pool_name)
    default = "drop" if pool is None else pool.spec.on_preempted
    return (task.spec.on_preempted or default) == "requeue"
