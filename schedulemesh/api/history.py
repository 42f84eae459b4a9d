"""The history: attempts, usage and events."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.values import Name, Names, Time, check_number, whole_number
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.numbers import parse_number
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
#: The states of attempts: of those in progress, and how they end.
STATES = (
    "queued",
    "starting",
    "running",
    "preempting",
    "completed",
    "failed",
    "cancelled",
    "lost",
    "preempted",
    "unknown",
)
#: The kinds of events; what each means is in docs/history.md.
EVENT_KINDS = (
    "queued",
    "requeued",
    "waiting",
    "held",
    "released",
    "priority_changed",
    "moved_to_front",
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
    "completed",
    "failed",
    "cancelled",
    "lost",
    "preempted",
    "unknown",
    "pool_defined",
    "cohort_defined",
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
GROUPINGS = ("pool", "owner", "label")


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
        raise InvalidRequestError(f"until ({until:g}) is before since ({since:g})")
