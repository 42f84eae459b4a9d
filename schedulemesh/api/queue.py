"""The queue: list the tasks that wait, and change how they wait."""

from __future__ import annotations

from schedulemesh.api.call import Call
from schedulemesh.api.tasks import OwnTaskChange
from schedulemesh.api.values import Count, PoolName, Priority, RequestId


class ChangeQueuedTask(OwnTaskChange, tag="change_queued_task", frozen=True, kw_only=True):
    """Change how a task waits in the queue; what is None or False stays as it is."""

    held: bool | None = None
    priority: Priority | None = None
    to_front: bool = False
    request_id: RequestId


class ListQueue(Call, tag="list_queue", frozen=True, kw_only=True):
    """List the first tasks that wait in the queue of a pool, or of each pool."""

    pool_name: PoolName | None = None
    #: How many of each pool; None: all.
    limit: Count | None = None
    #: Only tasks of a higher position than this: of the next page, the last position of the one before.
    after: Count = 0
