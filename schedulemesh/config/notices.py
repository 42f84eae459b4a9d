"""Settings of notices about tasks: who is told what of which tasks."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import MAX_TIMEOUT_S, as_seconds, parse_number
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: What a notice may be about; the kinds of events of the history.
NOTICE_EVENTS = (
    "started",
    "preempted",
    "failed",
    "lost",
    "completed",
    "cancelled",
    "time_limit_soon",
    "time_limit_reached",
    "idle_limit_soon",
    "idle_limit_reached",
)
#: Who has a task with this label is told of it, whatever the routes say: the value is the receiver's name.
NOTIFY_LABEL = "notify"


class NoticeRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told what of which tasks. Raises ValueError for values that are not valid."""

    #: Names of webhooks, mail or receivers.
    to: tuple[str, ...]
    #: Of ``NOTICE_EVENTS``.
    events: tuple[str, ...] = ("preempted", "failed", "lost")
    #: Only tasks of these pools, and of these owners; empty: all.
    pools: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    #: A start is told only of a task that has waited for so many seconds.
    min_wait_s: float = 600.0

    def __post_init__(self) -> None:
        """Convert to exact values and check them."""
        force = msgspec.structs.force_setattr
        for field in ("to", "events", "pools", "owners"):
            values = as_elements(getattr(self, field), field, "a list of names")
            force(self, field, tuple(parse_name(each, f"each of {field}") for each in values))
        if not self.to:
            raise InvalidRequestError("a route of notices names no receiver in its field to")
        if not self.events:
            raise InvalidRequestError(
                f"a route of notices has no events; it may have {', '.join(NOTICE_EVENTS)}"
            )
        for event in self.events:
            if event not in NOTICE_EVENTS:
                raise InvalidRequestError(
                    f"events has {shown(event)}{nearest(event, NOTICE_EVENTS)}; it may have "
                    + ", ".join(NOTICE_EVENTS)
                )
        wait_s = parse_number(
            as_seconds(self.min_wait_s, "min_wait_s"), "min_wait_s", 0.0, MAX_TIMEOUT_S
        )
        force(self, "min_wait_s", wait_s)
