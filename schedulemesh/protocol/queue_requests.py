"""Requests about the queue: submit many tasks, change, cancel and list those that wait, set the order."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import MAX_COUNT, parse_count, parse_priority
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.request_base import (
    Change,
    Names,
    Request,
    RequestWithBlobs,
    check_number,
)
from schedulemesh.protocol.submission_checks import check_submission

#: The most tasks that one request submits: the supervisor decides them without serving others meanwhile.
MAX_SUBMISSIONS = 100


class SubmitMany(RequestWithBlobs, tag="submit_many", frozen=True, kw_only=True):
    """Submit many tasks, which become durable together; each is answered."""

    submissions: Annotated[tuple[TaskSubmitted, ...], msgspec.Meta(max_length=MAX_SUBMISSIONS)]
    #: For each submission, how many of the object references sent beside the request are its whole
    #: arguments, and how many are nested in them; empty: none of them has any.
    references: Annotated[
        tuple[tuple[int, int], ...], msgspec.Meta(max_length=MAX_SUBMISSIONS)
    ] = ()

    def __post_init__(self) -> None:
        if len(self.submissions) > MAX_SUBMISSIONS:
            raise InvalidRequestError(
                f"one request submits up to {MAX_SUBMISSIONS:,} tasks, not {len(self.submissions):,}"
            )
        if self.references and len(self.references) != len(self.submissions):
            raise InvalidRequestError("references are counted for each submission, or for none")
        for number, submission in enumerate(self.submissions):
            if submission.task is None or submission.dry_run:
                raise InvalidRequestError(f"submission {number} is none of a task that is to run")
            check_submission(submission)


class ChangeQueuedTask(Request, tag="change_queued_task", frozen=True, kw_only=True):
    """Change how a task waits in the queue; what is None or False stays as it is."""

    task_id: str
    held: bool | None = None
    priority: float | None = None
    to_front: bool = False
    request_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        parse_name(self.request_id, "request_id")
        if self.priority is not None:
            parse_priority(self.priority)


class CancelTasks(Change, tag="cancel_tasks", frozen=True, kw_only=True):
    """Cancel these tasks."""

    task_ids: Names

    def __post_init__(self) -> None:
        check_number(self.task_ids, "task_ids")
        for task_id in self.task_ids:
            parse_name(task_id, "task_id")


class ListQueue(Request, tag="list_queue", frozen=True, kw_only=True):
    """List the first tasks that wait in the queue of a pool, or of each pool."""

    pool_name: str | None = None
    #: How many of each pool; None: all.
    limit: int | None = None
    #: Only tasks of a higher position than this: of the next page, the last position of the one before.
    after: int = 0

    def __post_init__(self) -> None:
        if self.pool_name is not None:
            parse_name(self.pool_name, "the pool's name")
        if self.limit is not None:
            parse_count(self.limit, "limit", 0, MAX_COUNT)
        parse_count(self.after, "after", 0, MAX_COUNT)


class ChangeQueuePolicy(Change, tag="change_queue_policy", frozen=True, kw_only=True):
    """Change these fields of the queue's policy."""

    changes: dict[str, Any]
    #: Who asks, as host:pid.
    client: str

    def __post_init__(self) -> None:
        parse_name(self.client, "the client's name")


class GetQueuePolicy(Request, tag="get_queue_policy", frozen=True, kw_only=True):
    """Get the current policy of the queue."""
