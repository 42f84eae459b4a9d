"""Numbers that users give, within finite ranges, copied to exact ``int``, ``float`` and ``bool``."""

from __future__ import annotations

import numbers
import operator
import re
from datetime import datetime, timezone

from schedulemesh.domain.kinds import is_a, without_enum
from schedulemesh.domain.priorities import as_priority
from schedulemesh.errors import InvalidRequestError, shown

#: Priorities lie within plus and minus this.
MAX_PRIORITY = 1e9
#: Seconds that a task may be estimated to take.
MAX_DURATION_S = 1e10
#: The latest time that is taken, in seconds since 1970.
LATEST_S = 1e11
#: Seconds of a time limit; the longest that every clock of Python can wait.
MAX_TIMEOUT_S = 1e9
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])", re.ASCII)
_SPAN = re.compile(rf"(?:{_PART.pattern}\s*){{1,5}}", re.ASCII)
#: Agents, groups, hosts or rows: no count is higher.
MAX_COUNT = 1_000_000


def as_number(value: object) -> int | float | None:
    """The exact number in a number of any library; None: it is none. A bool is no number."""
    if type(value) is int or type(value) is float:
        return value
    value = without_enum(value)
    if is_a(value, bool) or not issubclass(type(value), numbers.Real):
        return None
    try:
        if issubclass(type(value), numbers.Integral):
            return operator.index(value)  # type: ignore[arg-type]  # it is an Integral
        return float(value)  # type: ignore[arg-type]  # it is a Real
    except Exception:  # noqa: BLE001  # a number of the user's own class may raise anything
        return None


def parse_number(value: object, what: str, least: float, most: float) -> float:
    """A finite number from ``least`` to ``most``. Raises InvalidRequestError otherwise."""
    number = as_number(value)
    if number is None or number != number:  # NaN
        raise InvalidRequestError(f"{what} must be a finite number, not {shown(value)}")
    if not least <= number <= most:
        bound = f"at least {_short(least)}" if number < least else f"at most {_short(most)}"
        raise InvalidRequestError(f"{what} is {shown(value)}; it must be {bound}")
    return float(number)


def parse_positive(value: object, what: str, most: float) -> float:
    """A finite number above 0 and up to ``most``. Raises InvalidRequestError otherwise."""
    number = as_number(value)
    if number is not None and number <= 0:
        raise InvalidRequestError(f"{what} is {shown(value)}; it must be above 0")
    return parse_number(value, what, 0.0, most)


def parse_count(value: object, what: str, least: int = 0, most: int = MAX_COUNT) -> int:
    """A whole number from ``least`` to ``most``. Raises InvalidRequestError otherwise."""
    number = as_number(value)
    if not isinstance(number, int) or not least <= number <= most:
        raise InvalidRequestError(
            f"{what} must be a whole number of at least {least} and at most {most}, not {shown(value)}"
        )
    return number


def parse_flag(value: object, what: str) -> bool:
    """True or False, and nothing that only looks like it. Raises InvalidRequestError."""
    flag = without_enum(value)
    if not is_a(flag, bool):
        raise InvalidRequestError(f"{what} must be True or False, not {shown(value)}")
    return flag


def parse_priority(value: object, what: str = "priority") -> float:
    """A priority, as a number or by the name of its class. Raises InvalidRequestError."""
    return parse_number(as_priority(value, what), what, -MAX_PRIORITY, MAX_PRIORITY)


def span_of(text: str) -> float | None:
    """The seconds of a duration as people write it and tables show it: ``90s``, ``30m``, ``1h30m``, ``7d``,
    ``2w``; None: it is none.
    """
    if _SPAN.fullmatch(text.strip()) is None:
        return None
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(text))


def as_seconds(value: object, what: str) -> object:
    """The seconds of a duration that is written as a text; anything else as it is. Raises
    InvalidRequestError for another text.
    """
    if type(value) is not str:
        return value
    seconds = span_of(value)
    if seconds is None:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; allowed are seconds as a number, and a duration such as '90s', "
            "'30m', '1h30m', '12h', '7d' or '2w'"
        )
    return seconds


def parse_duration(value: object, what: str = "estimated_duration") -> float:
    """Seconds that something takes, as a number or as "30m". Raises InvalidRequestError."""
    return parse_number(as_seconds(value, what), what, 0.0, MAX_DURATION_S)


#: The smaller unit of a duration that has none of it.
_NOTHING = re.compile(r"(?<=[dhm])00[hms]$")


def duration_text(seconds: float) -> str:
    """A duration in its two largest units: 42s, 3m07s, 5h12m, 2d04h."""
    if seconds < 60:
        return f"{int(seconds)}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"
    if seconds < 86400:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}m"
    return f"{int(seconds // 86400)}d{int(seconds % 86400 // 3600):02d}h"


def local_time_text(at: float) -> str:
    """Seconds since 1970 as a local time without the year."""
    return datetime.fromtimestamp(at, tz=timezone.utc).astimezone().strftime("%m-%d %H:%M:%S")


def span_text(seconds: float) -> str:
    """As ``duration_text``, for sentences: to the nearest second, never below zero, and 2h for 2h00m."""
    return _NOTHING.sub("", duration_text(max(0, round(seconds))))


def parse_timeout(value: object, what: str) -> float:
    """Seconds of a time limit, above 0, as a number or as "30m". Raises InvalidRequestError."""
    number = as_number(as_seconds(value, what))
    if number is None or not 0 < number <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"{what} must be seconds above 0 and up to {_short(MAX_TIMEOUT_S)}, or a duration such as '30m', "
            f"not {shown(value)}"
        )
    return float(number)


def _short(limit: float) -> str:
    """A limit as a person writes it: 1e9, not 1e+09."""
    return f"{limit:g}".replace("e+0", "e").replace("e+", "e")
