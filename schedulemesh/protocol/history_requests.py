"""Requests about the history; see ``requests``."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_number
from schedulemesh.errors import InvalidRequestError, nearest, shown
from schedulemesh.protocol.request_base import Names, Request, check_number

#: The most rows that one answer has; a further request continues after its ``cursor``.
MAX_ROWS = 10_000
#: The highest number of an attempt or event, and the latest time in seconds since 1970.
HIGHEST_CURSOR = 10**15
_LATEST_S = 1e11
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


class QueryHistory(Request, tag="query_history", frozen=True, kw_only=True):
    """List attempts to run tasks, the newest first unless ``after`` is given; None: not filtered."""

    task_id: str | None = None
    pool_name: str | None = None
    owner: str | None = None
    agent_name: str | None = None
    state: str | None = None
    #: Labels that its task has.
    labels: Labels = msgspec.field(default_factory=dict)
    #: Those that had not ended before this time, and those that were submitted before that one.
    since: float | None = None
    until: float | None = None
    limit: int = 100
    #: Those with a lower ``cursor``, to continue a list; or those with a higher one, the oldest first.
    before: int | None = None
    after: int | None = None
    #: Whether each is listed with its events.
    with_events: bool = False

    def __post_init__(self) -> None:
        for name in ("task_id", "pool_name", "owner", "agent_name", "state"):
            if (given := getattr(self, name)) is not None:
                parse_name(given, name)
        if self.state is not None and self.state not in STATES:
            raise InvalidRequestError(
                f"state is {self.state!r}{nearest(self.state, STATES)}; it may be {', '.join(STATES)}"
            )
        _check_times(self.since, self.until)
        parse_count(self.limit, "limit", 1, MAX_ROWS)
        if self.before is not None:
            parse_count(self.before, "before", 0, HIGHEST_CURSOR)
        if self.after is not None:
            parse_count(self.after, "after", 0, HIGHEST_CURSOR)
            if self.before is not None:
                raise InvalidRequestError("either before or after is given, not both")


class QueryUsage(Request, tag="query_usage", frozen=True, kw_only=True):
    """Sum up what was used in a time span, which is extended to whole hours."""

    by: str = "pool"
    since: float
    #: None: now.
    until: float | None = None
    #: Of the labels only those with this key.
    label: str | None = None

    def __post_init__(self) -> None:
        if self.by not in GROUPINGS:
            allowed = ", ".join(GROUPINGS)
            raise InvalidRequestError(f"by is {shown(self.by)}; allowed are {allowed}")
        _check_times(self.since, self.until)
        if self.label is not None:
            parse_name(self.label, "label")
            if self.by != "label":
                raise InvalidRequestError(
                    "a label's key is given only where use is summed up by label"
                )


class QueryEvents(Request, tag="query_events", frozen=True, kw_only=True):
    """List events in their order."""

    #: Those after the one with this ``cursor``; None: those that come from now on.
    after: int | None = 0
    limit: int = 1000
    #: Seconds to wait for an event where there is none.
    wait_s: float = 0.0
    task_id: str | None = None
    #: Those about this pool and its tasks.
    pool_name: str | None = None
    kinds: Names = ()

    def __post_init__(self) -> None:
        if self.after is not None:
            parse_count(self.after, "after", 0, HIGHEST_CURSOR)
        parse_count(self.limit, "limit", 1, MAX_ROWS)
        parse_number(self.wait_s, "wait_s", 0.0, MAX_WAIT_S)
        for name in ("task_id", "pool_name"):
            if (given := getattr(self, name)) is not None:
                parse_name(given, name)
        check_number(self.kinds, "kinds", MAX_KINDS)
        for kind in self.kinds:
            parse_name(kind, "kind")
            if kind not in EVENT_KINDS:
                raise InvalidRequestError(
                    f"kind is {kind!r}{nearest(kind, EVENT_KINDS)}; it may be {', '.join(EVENT_KINDS)}"
                )


def _check_times(since: float | None, until: float | None) -> None:
    for name, given in (("since", since), ("until", until)):
        if given is not None:
            parse_number(given, f"{name} (in seconds since 1970)", 0.0, _LATEST_S)
    if since is not None and until is not None and until < since:
        raise InvalidRequestError(f"until ({until:g}) is before since ({since:g})")
