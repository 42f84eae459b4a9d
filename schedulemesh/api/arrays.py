"""Arrays: how one stands, and its members in pages."""

from __future__ import annotations

from typing import Annotated, TypedDict

from schedulemesh.api.rows import OneOf
from schedulemesh.api.tasks import OfTask
from schedulemesh.api.values import Count, whole_number
from schedulemesh.domain.arrays import MAX_INDEX
from schedulemesh.domain.task import EndState
from schedulemesh.errors import InvalidRequestError

#: What members of an array do, or how they have ended.
MEMBER_STATES = ("queued", "running", *(state.value for state in EndState))
#: The most members of one answer.
MAX_MEMBERS_LISTED = 1_000


class MemberRow(TypedDict, total=False):
    """A member of an array."""

    array_index: int
    task_id: str
    #: "queued", "starting", "running", "preempting" or "ending"; "completed", "failed", "cancelled" or
    #: "lost".
    state: str
    #: Of one that runs: its agent, its node, and since when (in seconds since 1970).
    agent_name: str
    node_id: str | None
    started_at: float | None
    #: Of one that has ended and whose end is on record: when (in seconds since 1970), and why it was not
    #: completed.
    ended_at: float | None
    reason: str
    error: str
    #: How often it was evicted, and how often its run failed.
    preemptions: int
    failures: int


class ArrayInfo(TypedDict, total=False):
    """How an array stands."""

    task_id: str
    pool_name: str
    owner: str
    #: What its members are: "agent", "gang" or "job".
    kind: str
    #: Its indices as they were given, and how many members run at once (0: as many as there is room for).
    array: str
    most: int
    #: How many members there are, and how many wait, run, and have ended in which way.
    count: int
    queued: int
    running: int
    completed: int
    failed: int
    cancelled: int
    lost: int
    #: Indices of those that have failed, were cancelled or lost, as ranges such as "3-7,9".
    not_completed: str
    #: "queued", "running", or how it has ended.
    state: str
    #: When it has ended, in seconds since 1970; None: it has not.
    ended_at: float | None
    members: list[MemberRow]
    #: The index after which the next page begins; None: there are no further members.
    next: int | None


class GetArray(OfTask, tag="get_array", frozen=True, kw_only=True):
    """Get how an array stands, and a page of its members in the order of their indices."""

    #: Only members in this state.
    state: Annotated[str, OneOf(*MEMBER_STATES)] | None = None
    #: Only members with a higher index; None: from the first one on.
    after: Annotated[int, whole_number(0, MAX_INDEX)] | None = None
    limit: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state is not None and self.state not in MEMBER_STATES:
            raise InvalidRequestError(
                f"state is {self.state!r}; members of arrays are {', '.join(MEMBER_STATES)}"
            )
        if self.limit > MAX_MEMBERS_LISTED:
            raise InvalidRequestError(
                f"limit is {self.limit:,}; one answer has up to {MAX_MEMBERS_LISTED:,} members, so ask for "
                "the next ones with after"
            )
