"""Tasks that wait in the queue, each by itself: how it waits, and its order value."""

from __future__ import annotations

import sys

import msgspec

from schedulemesh.config.queueing import BY_REMAINING, QueuePolicy
from schedulemesh.domain.resources import UNIT, Resources, least
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts, EndState, TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.estimates import expected_total_s
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.queue_classes import QueueClass
from schedulemesh.engine.state.tasks import RunningTask

#: Above every order value by priority or time; tasks that were moved to the front come before all others.
FRONT = 1e18
#: Above every number of GPUs: between two levels by attained service.
_LEVEL = 1e13
_INFINITY = float("inf")
#: Stands for infinity where an order value is stored.
LARGEST = sys.float_info.max


class Reservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A start that no later task may delay."""

    #: When, if the estimates of the running tasks hold, in seconds since 1970; None: unknown.
    at: float | None = None
    #: On which node: that of each bundle, or of an agent without bundles; empty: any, or none is known.
    node_ids: tuple[str, ...] = ()
    #: The existing placement group that it gets; None: it needs none, or a new one.
    group_id: str | None = None
    #: The first start that was reserved for it by the durations of earlier runs, or by the ends of tasks that
    #: run for longer than they declared; None: none was.
    first_at: float | None = None
    #: In which of its alternatives, from 0.
    alternative: int = 0
    #: In which flavor of its pool; empty: in none.
    flavor: str = ""


class QueueDetails(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """How a task waits beyond since when and at which place; as it is here for most tasks."""

    attempts: Attempts = FIRST_ATTEMPT
    held: bool = False
    #: When it may start, in seconds since 1970.
    not_before: float = 0.0
    #: The larger, the earlier it comes; 0: by its order alone.
    front: int = 0
    #: Its reserved start; only the first task of a pool has one.
    reservation: Reservation | None = None
    #: See ``Reservation.first_at``; None: none ever was.
    first_at: float | None = None
    #: See ``ImpossibilityNoted``.
    impossible_since: float | None = None
    #: How long it runs in all by earlier runs, for its order; None: that is not known, or not asked for.
    estimate_s: float | None = None
    #: Of the tasks that it starts after those that have not ended, as ``TaskSpec.after`` has them.
    waits_for: tuple[str, ...] = ()
    #: The one of them, and the state in which it has ended, for which this one never starts; None: there is
    #: none.
    broken_by: tuple[str, EndState] | None = None


class QueuedTask(QueueDetails, kw_only=True, omit_defaults=True, gc=False):
    """A task that waits in the queue."""

    submission: TaskSubmitted
    #: When it joined the queue, in seconds since 1970: after an eviction, again.
    queued_at: float
    #: The position of its first submission among all submissions.
    number: int
    #: Its class while it may start; None: it is held, or waits for ``not_before`` or for other tasks.
    queue_class: QueueClass | None = None
    #: Its place while it may start; see ``Queue.entry``.
    entry: Entry | None = None

    @property
    def common(self) -> TaskSubmitted:
        """Its submission, maybe without what is its own alone: the names of task and agent, the keys of its
        bytes, the id of the request and the declared duration.
        """
        return self.submission

    @property
    def outline(self) -> tuple[TaskSubmitted, str, str, float | None]:
        """``common``, ``task_id``, ``agent_name`` and ``estimated_duration``."""
        submission, spec = self.submission, self.spec
        return submission, spec.task_id, submission.agent.name, spec.estimated_duration

    @property
    def common_spec(self) -> TaskSpec:
        """The task, maybe without what is its own alone."""
        return self.spec

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        task = self.submission.task
        if task is None:
            raise ValueError("an agent without a task does not wait in the queue")
        return task

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self.spec.task_id

    @property
    def agent_name(self) -> str:
        """The name of the agent that will run it."""
        return self.submission.agent.name

    @property
    def estimated_duration(self) -> float | None:
        """For how many seconds it runs, as it says itself; None: it does not."""
        return self.spec.estimated_duration

    @property
    def pool_name(self) -> str:
        """The pool in whose queue it is."""
        return self.submission.agent.pool_name

    @property
    def need_of_class(self) -> Resources | None:
        """What it asks for, of each kind the least in any of its alternatives; None: what is usual in its
        pool.
        """
        submission = self.common
        if submission.default_resources:
            return None
        amounts = [one.resources for one in submission.agent.alternatives]
        return least(filter(None, amounts)) if any(amounts) else submission.agent.resources

    @property
    def arrived_at(self) -> float:
        """When it was first submitted."""
        arrived = self.attempts.arrived_at
        return self.queued_at if arrived is None else arrived

    @property
    def expires_at(self) -> float | None:
        """When it is cancelled if it still waits; None: never, or not while it waits for other tasks."""
        wait_s = self.common.wait_s
        return None if wait_s is None or self.depends else self.queued_at + wait_s

    @property
    def depends(self) -> bool:
        """Whether it may not start before other tasks have ended, or never."""
        return bool(self.waits_for) or self.broken_by is not None


def front_of(task: RunningTask) -> int:
    """The ``front`` with which a task has started before others; 0: it was not put first."""
    value = task.order_value
    return 0 if value is None or value > -FRONT else round(-value / FRONT)


def order_value(task: QueuedTask, policy: QueuePolicy) -> float:
    """The order value of a task in its pool: the smallest is served first."""
    attempts = task.attempts
    if policy.order == "fifo":
        return 0.0
    if policy.order in BY_REMAINING:
        return scaled(remaining_s(task, policy), task.common.agent.resources, policy)
    if policy.las_limit_s is not None:
        size = task.common.agent.resources.gpu / UNIT
        return _LEVEL * policy.las_level(attempts.gpu_s) + size
    # One that has run for as long as it may has had its turn: its age counts anew.
    aged_since = task.queued_at if attempts.time_limits else task.arrived_at
    return policy.ageing_per_hour / 3600.0 * aged_since - task.common_spec.priority


def common_order_value(task: QueuedTask, policy: QueuePolicy) -> float | None:
    """The order value that all tasks of a task's class have; None: each may have one of its own."""
    if policy.order == "fifo" or policy.is_by_priority:
        return order_value(task, policy)
    return None


def remaining_s(task: QueuedTask, policy: QueuePolicy) -> float:
    """The seconds for which a task that waits still has to run: by its declaration, else by its estimate,
    which grows once it has run for longer (``expected_total_s``). Infinite where nothing is known.
    """
    declared, ran_s = task.estimated_duration, task.attempts.ran_s
    if declared is not None:
        return max(0.0, declared - ran_s)
    if task.estimate_s is None or not policy.estimates:
        return _INFINITY
    return expected_total_s(task.estimate_s, ran_s) - ran_s


def scaled(left_s: float, resources: Resources, policy: QueuePolicy) -> float:
    """What the order counts of a task that still has to run so long: seconds, or with "shortest_service"
    GPU-seconds; infinite where nothing is known.
    """
    if policy.order != "shortest_service" or left_s == _INFINITY:
        return left_s
    return left_s * resources.gpus
