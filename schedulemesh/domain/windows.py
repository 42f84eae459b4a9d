"""Windows: times, once or again and again, at which nodes are empty for maintenance, or are reserved."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.names import as_text
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.numbers import LATEST_S
from schedulemesh.domain.resources import (
    NOTHING,
    OF_FLAVORS,
    Resources,
    parse_resources,
    sum_of,
)
from schedulemesh.errors import InvalidRequestError, shown

#: After how many seconds a window comes again, by the word for it; empty: never.
PERIODS_S = {"": math.inf, "daily": 86_400.0, "weekly": 604_800.0}
#: The words for windows that come again.
REPEATS = tuple(word for word in PERIODS_S if word)
#: Seconds before a window from which on no task starts whose end is not known.
DEFAULT_NOTICE_S = 3600.0
#: Windows of one scheduler.
MAX_WINDOWS = 1_000

#: A date and a time with the offset from UTC, such as 2026-12-05T22:00+01:00.
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(Z|[+-]\d\d:\d\d)", re.ASCII)


class Occurrence(NamedTuple):
    """One time at which a window is open."""

    start: float
    end: float


class MaintenanceWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A time at which nodes are to be empty, or are reserved for some tasks; times are seconds since 1970."""

    name: str
    #: When it opens for the first time.
    start: float
    duration_s: float
    #: One of ``REPEATS``; empty: it does not come again.
    repeat: str = ""
    #: The nodes, by id ...
    node_ids: tuple[str, ...] = ()
    #: ... or by labels; with neither it is for every node.
    node_labels: NodeLabels = ()
    #: How much it reserves, of one kind: nodes that have it together are chosen among those with the labels.
    #: Nothing: it is for all of them.
    resources: Resources = NOTHING
    notice_s: float = DEFAULT_NOTICE_S
    #: Minutes by which the clock in which its start was given is ahead of UTC.
    utc_offset: int = 0
    comment: str = ""
    #: For whom it reserves the nodes: for tasks of any of these pools or owners, or with all of these labels;
    #: with none of these it is for maintenance.
    pools: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    labels: Labels = {}

    @property
    def is_amount(self) -> bool:
        """Whether it reserves an amount on nodes that the scheduler chooses."""
        return bool(self.resources)

    def part_of(self, total: Resources) -> int:
        """What a node with these totals has of the kind that it reserves, in units."""
        kinds = {kind for kind, _ in self.resources.items()}
        return sum(units for kind, units in total.items() if kind in kinds)

    def lacking(self, totals: Iterable[Resources]) -> Resources:
        """What nodes with these totals lack of what it reserves."""
        return self.resources.beyond(sum_of(totals))

    @property
    def is_reservation(self) -> bool:
        """Whether some tasks may run on its nodes while it is open."""
        return bool(self.pools or self.owners or self.labels)

    def admits(self, pool_name: str, owner: str, labels: Labels) -> bool:
        """Whether it reserves nodes for a task of this pool with this owner and these labels."""
        if pool_name in self.pools or owner in self.owners:
            return True
        return bool(self.labels) and self.labels.items() <= labels.items()

    @property
    def period_s(self) -> float:
        """Seconds from one opening to the next; infinite: there is no next one."""
        return PERIODS_S[self.repeat]

    def occurrence(self, now: float) -> Occurrence | None:
        """The occurrence in progress, or else the next one; None: all are over."""
        start = self.start
        if now >= start + self.duration_s:
            if not self.repeat:
                return None
            start += (now - start - self.duration_s) // self.period_s * self.period_s
            while now >= start + self.duration_s:
                start += self.period_s
        return Occurrence(start, start + self.duration_s)

    def is_closed_to(self, occurrence: Occurrence, begin: float, run_s: float) -> bool:
        """Whether a task that begins then and runs for so long may not be on the window's nodes, for the sake
        of this occurrence. Infinite: its end is not known.

        One that would not fit between two occurrences could never begin: it counts as one without an end.
        """
        if begin >= occurrence.end:
            return False
        if begin >= occurrence.start - self.notice_s and begin + run_s > occurrence.start:
            return True
        longest_s = self.period_s - self.duration_s
        if math.isinf(run_s) or run_s > longest_s:
            return False
        return begin + run_s > occurrence.start

    def overlaps(self, occurrence: Occurrence) -> bool:
        """Whether it is open at any time of an occurrence of another window."""
        first = self.occurrence(occurrence.start)
        return first is not None and first.start < occurrence.end

    def time_text(self, at: float) -> str:
        """A time by the clock in which the window's start was given."""
        return time_text(at, self.utc_offset)


def time_text(at: float, utc_offset: int) -> str:
    """A time by a clock that is so many minutes ahead of UTC; without seconds where it has none."""
    local = datetime.fromtimestamp(at, timezone(timedelta(minutes=utc_offset)))
    return local.isoformat(timespec="seconds" if local.second else "minutes")


def parse_instant(value: object, what: str) -> tuple[float, int]:
    """A time with its offset from UTC: seconds since 1970, and minutes. Raises InvalidRequestError."""
    text = as_text(value)
    match = None if text is None else _TIME.fullmatch(text.strip())
    if match is None:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; allowed is a date and a time with the offset from UTC, such as "
            "2026-12-05T22:00+01:00 or 2026-12-05T21:00Z"
        )
    date, offset = match.groups()
    try:
        at = datetime.fromisoformat(date + ("+00:00" if offset == "Z" else offset))
        seconds = at.timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{what} is {shown(value)}, and there is no such time") from error
    if not 0.0 <= seconds <= LATEST_S:
        raise InvalidRequestError(f"{what} is {shown(value)}; allowed is a time after 1970")
    return seconds, round((at.utcoffset() or timedelta()).total_seconds() / 60)


def parse_amount(value: object, what: str = "resources") -> Resources:
    """What a window reserves; None: whole nodes. Raises InvalidRequestError for more than one kind."""
    if value is None:
        return NOTHING
    amount = parse_resources(value, what)
    if len([*amount.items()]) != 1:
        raise InvalidRequestError(
            f"{what} of a window is {shown(value)}; a window reserves an amount of one kind, such as "
            "{'gpu': 8}"
        )
    ((kind, _),) = amount.items()
    if kind.startswith(OF_FLAVORS):
        raise InvalidRequestError(
            f"{what} of a window is {shown(value)}, of which only pools have a quota; reserve "
            f"{kind.partition('@')[0]}, and choose the nodes by node_labels"
        )
    return amount


def check_repeat(duration_s: float, repeat: str) -> None:
    """Raise InvalidRequestError for a window that would be open for ever, or whose word is unknown."""
    if repeat not in PERIODS_S:
        allowed = ", ".join(map(repr, REPEATS))
        raise InvalidRequestError(
            f"repeat is {shown(repeat)}; allowed are {allowed}; leave it out for a window that comes once"
        )
    if duration_s >= PERIODS_S[repeat]:
        raise InvalidRequestError(
            f"a {repeat} window of {duration_s:g} s would be open for ever; make it shorter"
        )
