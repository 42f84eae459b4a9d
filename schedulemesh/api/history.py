"""The history: attempts, usage and events."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.rows import OneOf
from schedulemesh.api.tasks import Owner, PoolOf, TaskName
from schedulemesh.api.values import Name, Names, Time, check_number, whole_number
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.numbers import parse_number, span_text
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: The most rows that one answer has; a further request continues after its ``cursor``.
MAX_ROWS = 10_000
#: The highest number of an attempt or event.
HIGHEST_CURSOR = 10**15
#: The number of an attempt or event.
Cursor = Annotated[int, whole_number(0, HIGHEST_CURSOR)]
#: Seconds that a request for events waits for the next one.
MAX_WAIT_S = 30.0
#: The most kinds of events that one request names.
MAX_KINDS = 100
#: How attempts end. ``returned``: the task gave its claim back before it ran, and waits in the queue again;
#: ``unknown``: the history has a gap there.
ENDS = ("completed", "failed", "cancelled", "lost", "preempted", "returned", "unknown")
#: The states of attempts: of those in progress, and how they end.
STATES = ("queued", "starting", "running", "preempting", *ENDS)
#: The kinds of events; what each means is in docs/history.md.
EVENT_KINDS = (
    "queued",
    "requeued",
    "waiting",
    "held",
    "released",
    "priority_changed",
    "moved_to_front",
    "dependencies_met",
    "split",
    "members_cancelled",
    "admitted",
    "started",
    "restarted",
    "claim_moved",
    "ending",
    "registered",
    "preempting",
    "saved",
    "not_saved",
    "eviction_failed",
    "time_limit_soon",
    "time_limit_changed",
    "time_limit_reached",
    "idle_limit_soon",
    "idle_limit_cleared",
    "idle_limit_reached",
    *ENDS,
    "pool_defined",
    "window_created",
    "window_ended",
    "window_nodes_chosen",
    "pool_renamed",
    "pool_deleted",
    "budget_reached",
    "budget_renewed",
    "cohort_defined",
    "cohort_renamed",
    "cohort_deleted",
    "policy_changed",
    "queue_policy_changed",
    "node_joined",
    "node_changed",
    "node_lost",
    "node_cordoned",
    "node_uncordoned",
    "drain_started",
    "drain_ended",
    "group_created",
    "group_removed",
    "supervisor_started",
    "supervisor_recovered",
    "gap",
    "found",
)
#: By what the use of resources is summed up.
GROUPINGS = ("pool", "owner", "label", "flavor")


class HistoryEvent(TypedDict, total=False):
    """Something that happened."""

    #: Its number; events after it are listed with ``after``.
    cursor: int
    at: float
    kind: Annotated[str, OneOf(*EVENT_KINDS)]
    #: The pool, node or group that it is about, where it is about no task.
    subject: str
    detail: dict[str, Any]
    #: The task that it is about; empty: none, or an agent without a task.
    task_id: TaskName
    agent_name: str
    pool_name: PoolOf
    owner: Owner


class AttemptInfo(TypedDict, total=False):
    """An attempt to run a task, or an agent without a task, whose ``task_id`` is empty."""

    #: Its number; older ones are listed with ``before``.
    cursor: int
    task_id: TaskName
    #: Which attempt of the task it is: 1 for the first.
    attempt: int
    agent_name: str
    pool_name: PoolOf
    owner: Owner
    #: The client that submitted it (host:pid), where it was submitted to the queue.
    client: str
    priority: float | None
    labels: dict[str, str]
    cpu: float
    memory_mb: float
    gpu: float
    custom: dict[str, float]
    node_ids: list[str]
    #: The first submission of the task, and when this attempt joined the queue.
    submitted_at: float | None
    queued_at: float | None
    admitted_at: float | None
    started_at: float | None
    ended_at: float | None
    #: When what it held was free.
    released_at: float | None
    #: ``queued``, ``starting``, ``running``, ``preempting``; or how it ended: ``completed``, ``failed``,
    #: ``cancelled``, ``lost``, ``preempted``, ``returned`` (it gave its claim back before it ran, and waits
    #: in the queue again: no failure) or, where the history has a gap, ``unknown``.
    state: Annotated[str, OneOf(*STATES)]
    reason: str
    error: str
    #: Its eviction: the rule, when it was decided, and for whom or by which client.
    rule: str
    evicted_at: float | None
    by_task: str
    by_agent: str
    by_pool: str
    by_owner: str
    by_client: str
    saved_at: float | None
    save_error: str
    #: Seconds of work that its eviction lost; None: it was not evicted.
    lost_s: float | None
    #: Whether it began with a restored state; None: there was none.
    restored: bool | None
    #: The seconds that its task says each attempt may run; None: what its pool says.
    max_run_s: float | None
    #: What becomes of the task then: ``end`` or ``requeue``; empty: ``end``.
    on_time_limit: str
    #: Conditions on the labels of its nodes; of one that waits, those that it prefers.
    label_selector: dict[str, str]
    #: The number of the alternative that it ran in, from 1; 0: it had one alone, or has not started.
    alternative: int
    #: The flavor of its pool in which it ran; empty: none, or it has not started.
    flavor: str
    #: How close together its members were to be placed; empty: anywhere.
    topology: str
    #: The tasks that its task starts after, each as "ok:ID", "any:ID" or "fail:ID".
    after: list[str]
    waited_s: float
    ran_s: float
    #: What it used: CPU-seconds and GPU-seconds, until its agent had ended.
    cpu_s: float
    gpu_s: float
    events: list[HistoryEvent]


class UsageInfo(TypedDict, total=False):
    """What one pool, owner, label or flavor used."""

    pool: PoolOf
    owner: Owner
    #: ``key=value``.
    label: str
    #: What ran in none is in no row.
    flavor: str
    gpu_hours: float
    cpu_hours: float
    memory_gb_hours: float
    #: The sum of the times for which tasks waited.
    waiting_hours: float
    #: Work that evictions lost, and the same in GPU-hours.
    lost_hours: float
    lost_gpu_hours: float
    started: int
    completed: int
    failed: int
    cancelled: int
    lost: int
    preempted: int


class QueryHistory(Call, tag="query_history", frozen=True, kw_only=True):
    """List attempts to run tasks, the newest first unless ``after`` is given; None: not filtered."""

    task_id: Name | None = None
    pool_name: Name | None = None
    owner: Name | None = None
    agent_name: Name | None = None
    state: Name | None = None
    #: Labels that its task has.
    labels: Labels = msgspec.field(default_factory=dict)
    #: Those that had not ended before this time, and those that were submitted before that one.
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, whole_number(1, MAX_ROWS)] = 100
    #: Those with a lower ``cursor``, to continue a list; or those with a higher one, the oldest first.
    before: Cursor | None = None
    after: Cursor | None = None
    #: Whether each is listed with its events.
    with_events: bool = False
    #: Whether to answer at once, also where the history does not contain all that is durable yet.
    at_once: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state is not None and self.state not in STATES:
            raise InvalidRequestError(
                f"state is {self.state!r}{nearest(self.state, STATES)}; it may be {', '.join(STATES)}"
            )
        _check_order(self.since, self.until)
        if self.after is not None and self.before is not None:
            raise InvalidRequestError("either before or after is given, not both")


class QueryUsage(Call, tag="query_usage", frozen=True, kw_only=True):
    """Sum up what was used in a time span, which is extended to whole hours."""

    by: str = "pool"
    since: Time
    #: None: now.
    until: Time | None = None
    #: Of the labels only those with this key.
    label: Name | None = None
    #: Whether to answer at once, as in QueryHistory.
    at_once: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by not in GROUPINGS:
            allowed = ", ".join(GROUPINGS)
            raise InvalidRequestError(f"by is {shown(self.by)}; allowed are {allowed}")
        _check_order(self.since, self.until)
        if self.label is not None and self.by != "label":
            raise InvalidRequestError("a label's key is given only where use is summed up by label")


class QueryEvents(Call, tag="query_events", frozen=True, kw_only=True):
    """List events in their order."""

    #: Those after the one with this ``cursor``; None: those that come from now on.
    after: Cursor | None = 0
    limit: Annotated[int, whole_number(1, MAX_ROWS)] = 1000
    #: Seconds to wait for an event where there is none.
    wait_s: float = 0.0
    task_id: Name | None = None
    #: Those about this pool and its tasks.
    pool_name: Name | None = None
    kinds: Names = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_number(self.wait_s, "wait_s", 0.0, MAX_WAIT_S)
        check_number(self.kinds, "kinds", MAX_KINDS)
        for kind in self.kinds:
            if kind not in EVENT_KINDS:
                raise InvalidRequestError(
                    f"kind is {kind!r}{nearest(kind, EVENT_KINDS)}; it may be {', '.join(EVENT_KINDS)}"
                )


def _check_order(since: float | None, until: float | None) -> None:
    if since is not None and until is not None and until < since:
        raise InvalidRequestError(
            f"until is {span_text(since - until)} before since; exchange the two"
        )
