"""Facts about tasks that wait in the queue; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts, EndState
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.stimuli import TaskSubmitted


class TaskQueued(Fact, tag="task_queued", frozen=True, kw_only=True):
    """The task waits in the queue; ``AgentAdmitted`` with its id takes it out of it."""

    #: Its pool is known, and the agent's name.
    submission: TaskSubmitted
    at: float
    #: The position of its first submission among all submissions.
    number: int
    attempts: Attempts = FIRST_ATTEMPT
    #: When it may start, in seconds since 1970; 0: at once.
    not_before: float = 0.0
    #: Of the tasks that it starts after those that have not ended, as ``TaskSpec.after`` has them.
    waits_for: tuple[str, ...] = ()


class DependencyEnded(Fact, tag="dependency_ended", frozen=True, kw_only=True):
    """A task has ended that tasks in the queue were to start after."""

    task_id: str
    state: EndState
    at: float
    #: The tasks that wait for no other from now on, in the order in which they were submitted: each comes
    #: in the queue as if it were submitted now.
    ready: tuple[str, ...] = ()
    #: The tasks that can never start, because it should have ended otherwise; they are cancelled next.
    broken: tuple[str, ...] = ()


class ArrayMembersSplit(Fact, tag="array_members_split", frozen=True, kw_only=True):
    """Members of an array are tasks in the queue from now on, to start or to be changed alone."""

    array_id: str
    indices: tuple[int, ...]
    at: float


class ArrayMembersCancelled(Fact, tag="array_members_cancelled", frozen=True, kw_only=True):
    """Members of an array that were no tasks yet never start."""

    array_id: str
    #: As ranges, such as ``3-7,9``; empty: all that were no tasks yet.
    indices: str
    at: float
    reason: Reason
    #: One sentence for people; empty: the reason says all.
    error: str = ""


class ArrayEnded(Fact, tag="array_ended", frozen=True, kw_only=True):
    """All members of an array have ended."""

    array_id: str
    at: float
    state: EndState
    #: How many have ended in which way, where not all were completed; empty: they were.
    error: str = ""


class QueuePlaceChanged(Fact, tag="queue_place_changed", frozen=True, kw_only=True):
    """How a task waits in the queue from now on."""

    task_id: str
    held: bool
    priority: float
    at: float
    #: The larger, the earlier it comes; 0: by its order alone.
    front: int = 0


class PriorityChanged(Fact, tag="priority_changed", frozen=True, kw_only=True):
    """A task that has an agent has another priority, for evictions from now on and for its next attempt."""

    task_id: str
    priority: float
    at: float


class TaskCancelled(Fact, tag="task_cancelled", frozen=True, kw_only=True):
    """A task that waited in the queue was cancelled."""

    task_id: str
    at: float
    reason: Reason
    #: One sentence for people; empty: the reason says all.
    error: str = ""


class QueuePolicyChanged(Fact, tag="queue_policy_changed", frozen=True, kw_only=True):
    """The policy of the queue from now on, and who changed what of it."""

    policy: QueuePolicy
    at: float
    client: str
    changes: tuple[str, ...] = ()


class StartReserved(Fact, tag="start_reserved", frozen=True, kw_only=True):
    """No task that comes after this one may delay its start from now on."""

    task_id: str
    #: When it can start if the estimates of running tasks hold, in seconds since 1970; None: unknown.
    at: float | None = None
    #: Where: the node of each bundle, or of an agent without bundles; empty: any, or none is known.
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


class QueuedTasksEstimated(Fact, tag="queued_tasks_estimated", frozen=True, kw_only=True):
    """The tasks of a kind that wait are expected to run so long, for their order; by earlier runs."""

    kind: TaskKind
    seconds: float


class ReservationDropped(Fact, tag="reservation_dropped", frozen=True, kw_only=True):
    """The start of this task is reserved no longer."""

    task_id: str


class ImpossibilityNoted(Fact, tag="impossibility_noted", frozen=True, kw_only=True):
    """Since when a task that waits could not start even if nothing else ran; noted only where such tasks are
    cancelled in the end.
    """

    task_id: str
    #: In seconds since 1970; None: it could, or other tasks that could come before it.
    since: float | None


class TurnsPassed(Fact, tag="turns_passed", frozen=True, kw_only=True):
    """More pools wait than one tick searches for: with which of them the next tick begins."""

    at: float
    #: The name of a pool, or where it would be in their order: for evictions, and for reserved starts.
    evictions: str = ""
    starts: str = ""


class ClassLoaded(Fact, tag="class_loaded", frozen=True, kw_only=True):
    """The class with this key has loaded in a worker at least once: then evictions are sought."""

    class_key: str
    at: float


class Ticked(Fact, tag="ticked", frozen=True, kw_only=True):
    """A tick has decided what the facts before this one in its step say. It changes nothing: a rehearsal of
    the history has to tick at the same time. Ticks that decide nothing have no facts.
    """

    at: float
    #: Whether it was the reconciliation after a restart of the supervisor, which decides what a tick does.
    recovered: bool = False
    #: Whether it was no tick, but a step that changed nothing itself, such as a refusal: tasks were started
    #: all the same that could by then.
    served: bool = False


AnyQueueFact = Union[
    ArrayEnded,
    ArrayMembersCancelled,
    ArrayMembersSplit,
    ClassLoaded,
    DependencyEnded,
    ImpossibilityNoted,
    PriorityChanged,
    QueuePlaceChanged,
    QueuePolicyChanged,
    QueuedTasksEstimated,
    ReservationDropped,
    StartReserved,
    TaskCancelled,
    TaskQueued,
    Ticked,
    TurnsPassed,
]
