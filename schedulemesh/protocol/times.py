"""Times as callers give them: seconds since 1970, a duration before now, or a date."""

from __future__ import annotations

import re
import time
from datetime import datetime

from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import LATEST_S, parse_number
from schedulemesh.errors import InvalidRequestError, shown

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])")


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
    ago = _AGO.fullmatch(text)
    if ago is not None:
        now = time.time() if now is None else now
        return max(0.0, now - float(ago[1]) * _UNITS_S[ago[2]])
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequestError(
            f"{what} is {shown(given)}; allowed are seconds since 1970, a time ago such as '30m', '24h' or "
            "'7d', and a date such as '2026-11-01T12:00'"
        ) from error
