"""The queue: list the tasks that wait, and change how they wait."""

from __future__ import annotations

from typing import ClassVar

from schedulemesh.api.call import Call
from schedulemesh.api.routes import patch
from schedulemesh.api.tasks import OwnTaskChange
from schedulemesh.api.values import Count, PoolName, Priority, RequestId
from schedulemesh.errors import InvalidRequestError


class ChangeQueuedTask(OwnTaskChange, tag="change_queued_task", frozen=True, kw_only=True):
    """Change one thing of how a task waits in the queue."""

    routes: ClassVar = (
        patch(
            "/queue/{task_id}",
            "Hold or release a queued task, change its priority, or move it to the front",
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

    pool_name: PoolName | None = None
    #: How many of each pool; None: all.
    limit: Count | None = None
    #: Only tasks of a higher position than this: of the next page, the last position of the one before.
    after: Count = 0
