"""The queue: list the tasks that wait, and change how they wait."""

from __future__ import annotations

from typing import Annotated, ClassVar

from schedulemesh.api.call import Call
from schedulemesh.api.routes import ListRoute, patch
from schedulemesh.api.rows import OneOf
from schedulemesh.api.tasks import OwnTaskChange, ReasonCode, TaskInfo, TaskKind
from schedulemesh.api.values import Count, Names, PoolName, Priority, RequestId
from schedulemesh.domain.resources import Amounts
from schedulemesh.errors import InvalidRequestError


class QueueListing(TaskInfo, total=False):
    """A task that waits in the queue; times are in seconds."""

    #: The name that its agent will have.
    agent_name: str
    #: "agent", "gang", "lease" or "job".
    kind: TaskKind
    #: "queued".
    state: Annotated[str, OneOf("queued")]
    #: How many tasks of its pool come before it, plus one.
    position: int
    #: Whether it does not start until it is released.
    held: bool
    #: Since it joined the queue.
    waiting_time: float
    #: When it joined the queue, and when it was first submitted, since 1970.
    queued_at: float
    arrived_at: float
    #: When it may start, since 1970; None: at once.
    not_before: float | None
    #: How often it was evicted.
    preemptions: int
    #: The start that is reserved for it, since 1970; None: none is, or its time is not known.
    reserved_start: float | None
    #: How long it runs in all, as declared, else by earlier runs; None: not known.
    expected_duration: float | None
    #: From how many earlier runs that is estimated; 0: it is not.
    estimated_from: int
    #: Seconds that it may run when it starts, by itself and its pool; None: no limit.
    run_limit_s: float | None
    #: The code of why its pool as it is defined could not hold it even if nothing else ran, so that those
    #: behind it do not wait for it; None: the pool could.
    cannot_start: ReasonCode | None
    #: What it asks for.
    resources: Amounts
    #: Conditions on the labels of its nodes, as it prefers to run.
    label_selector: dict[str, str]
    #: Why it waits: the code that ``explain`` gives.
    reason: ReasonCode
    #: What its pool's quota lacks, or else the closest node; empty where neither is why it waits.
    short: Amounts


class ChangeQueuedTask(OwnTaskChange, tag="change_queued_task", frozen=True, kw_only=True):
    """Change one thing of how a task waits in the queue, or the priority of one that runs."""

    routes: ClassVar = (
        patch(
            "/queue/{task_id}",
            "Hold or release a queued task, or move it to the front; or change the priority of a task",
        ),
    )

    held: bool | None = None
    priority: Priority | None = None
    to_front: bool = False
    request_id: RequestId

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum((self.held is not None, self.priority is not None, self.to_front)) != 1:
            raise InvalidRequestError("give one of held, priority and to_front")


class ListQueue(Call, tag="list_queue", frozen=True, kw_only=True):
    """List the first tasks that wait in the queue of a pool, or of each pool."""

    listings: ClassVar = (
        ListRoute(
            path="/queue",
            summary="List the tasks that wait in the queue, in the order of each pool",
            row=QueueListing,
            key=("pool_name", "position", "task_id"),
            paged="queue",
        ),
    )

    pool_name: PoolName | None = None
    #: Those with these ids only; None: all.
    task_ids: Names | None = None
    #: How many of each pool; None: all.
    limit: Count | None = None
    #: Only tasks of a higher position than this: of the next page, the last position of the one before.
    after: Count = 0
