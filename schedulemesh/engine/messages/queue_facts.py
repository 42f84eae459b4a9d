"""Facts about tasks that wait in the queue; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts
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


class QueuePlaceChanged(Fact, tag="queue_place_changed", frozen=True, kw_only=True):
    """How a task waits in the queue from now on."""

    task_id: str
    held: bool
    priority: float
    #: The larger, the earlier it comes; 0: by its order alone.
    front: int = 0


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


class ReservationDropped(Fact, tag="reservation_dropped", frozen=True, kw_only=True):
    """The start of this task is reserved no longer."""

    task_id: str


AnyQueueFact = Union[
    QueuePlaceChanged,
    QueuePolicyChanged,
    ReservationDropped,
    StartReserved,
    TaskCancelled,
    TaskQueued,
]
