"""Times as callers give them: seconds since 1970, a duration before now, or a date."""

from __future__ import annotations

import re
import time
from datetime import datetime

from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import LATEST_S, parse_number, span_of
from schedulemesh.errors import InvalidRequestError, shown

#: A number of seconds since 1970; one of eight digits is a date.
_SECONDS = re.compile(r"\d{9,12}(?:\.\d{1,9})?", re.ASCII)


def parse_time(value: object, what: str, now: float | None = None) -> float | None:
    """The time in seconds since 1970; None stays None. Raises InvalidRequestError.

    A text is a duration before ``now`` (None: the present), such as "2h", an ISO 8601 date in local time or
    with an offset, or a number of nine digits or more.
    """
    if value is None:
        return None
    text = as_text(value)
    if text is None:
        return parse_number(value, what, 0.0, LATEST_S)
    ago = span_of(text)
    if ago is not None:
        return max(0.0, (time.time() if now is None else now) - ago)
    if _SECONDS.fullmatch(text.strip()):
        return parse_number(float(text), what, 0.0, LATEST_S)
    try:
        return max(0.0, datetime.fromisoformat(text.strip()).timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; allowed are a duration before now such as 90s, 30m, 12h, 7d or 2w, a "
            "date such as 2026-03-01 or 2026-03-01T12:30, and seconds since 1970"
        ) from error
