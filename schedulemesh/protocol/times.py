"""Times as callers give them: seconds since 1970, a duration before now, or a date."""

from __future__ import annotations

import re
import time
from datetime import datetime

from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import LATEST_S, parse_number
from schedulemesh.errors import InvalidRequestError, shown

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
_SPAN = re.compile(rf"(?:{_PART.pattern}\s*){{1,5}}")


def parse_time(given: object, what: str, now: float | None = None) -> float | None:
    """The time in seconds since 1970; None stays None. Raises InvalidRequestError.

    A text is a duration before ``now`` (None: the present), such as "2h", or an ISO 8601 date in local time
    or with an offset.
    """
    if given is None:
        return None
    text = as_text(given)
    if text is None:
        return parse_number(given, what, 0.0, LATEST_S)
    ago = span_of(text)
    if ago is not None:
        return max(0.0, (time.time() if now is None else now) - ago)
    try:
        return max(0.0, datetime.fromisoformat(text.strip()).timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequestError(
            f"{what} is {shown(given)}; allowed are a duration before now such as 90s, 30m, 12h, 7d or 2w, a "
            "date such as 2026-03-01 or 2026-03-01T12:30, and seconds since 1970"
        ) from error


def span_of(text: str) -> float | None:
    """The seconds of a duration as people write it and tables show it: ``90s``, ``30m``, ``1h30m``, ``7d``,
    ``2w``; None: it is none.
    """
    if _SPAN.fullmatch(text.strip()) is None:
        return None
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(text))
