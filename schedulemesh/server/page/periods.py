"""Periods of time that screens of the history show, and the marks on their axes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.domain.numbers import LATEST_S
from schedulemesh.server.page.entries import InvalidEntryError

_HOUR_S, _DAY_S = 3600, 86_400
#: The lengths of periods that may be chosen, in seconds; the text of each is ``span_KEY``.
SPANS: Mapping[str, int] = {
    "1h": _HOUR_S,
    "6h": 6 * _HOUR_S,
    "24h": _DAY_S,
    "7d": 7 * _DAY_S,
    "30d": 30 * _DAY_S,
}
#: Seconds between two marks of an axis; the first with which there are no more than this is taken.
_STEPS = (
    600,
    900,
    1800,
    3600,
    2 * 3600,
    3 * 3600,
    6 * 3600,
    12 * 3600,
    86_400,
    2 * 86_400,
    5 * 86_400,
)
_MOST_MARKS = 8
#: The part at the end of an axis that has no mark.
_EDGE = 0.025


class Period(NamedTuple):
    """A period of time, in seconds since 1970."""

    span: str
    since: float
    until: float
    #: Whether it ends now.
    is_current: bool

    @property
    def length_s(self) -> float:
        """How long it is."""
        return self.until - self.since

    def marks(self) -> list[tuple[float, str]]:
        """Times within it at round hours or days of this machine's zone, and what they are called."""
        step = next((one for one in _STEPS if self.length_s / one <= _MOST_MARKS), _STEPS[-1])
        zone_s = _local(self.since).utcoffset()
        offset_s = 0.0 if zone_s is None else zone_s.total_seconds()
        first = ((self.since + offset_s) // step + 1) * step - offset_s
        form = "%m-%d" if step >= _DAY_S else "%H:%M" if self.length_s <= _DAY_S else "%m-%d %H:%M"
        count = int((self.until - first) // step) + 1
        times = [first + number * step for number in range(max(0, count))]
        # What is written at the very edge would be cut off.
        last = self.until - _EDGE * self.length_s
        return [(at, _local(at).strftime(form)) for at in times if at <= last]


def period(query: QueryParams, now: float, default: str) -> Period:
    """The period that a query asks for: ``span`` before ``until``, else before now. Raises
    InvalidRequestError.
    """
    span = query.get("span") or default
    if span not in SPANS:
        raise InvalidEntryError("wrong_span", value=span, allowed=", ".join(SPANS))
    until = _time(query.get("until") or "")
    is_current = until is None or until >= now
    end = now if until is None or is_current else until
    return Period(span, max(0.0, end - SPANS[span]), end, is_current)


def _time(text: str) -> float | None:
    """Whole seconds since 1970; None: none are given. Raises InvalidRequestError."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= LATEST_S):
        raise InvalidEntryError("wrong_until", value=text)
    return float(text)


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, tz=timezone.utc).astimezone()
