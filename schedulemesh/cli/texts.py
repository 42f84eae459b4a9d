"""Values as people read them in tables: amounts, durations, times; and times as people write them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from schedulemesh.cli.language import language, phrase
from schedulemesh.domain.numbers import duration_text, local_time_text
from schedulemesh.errors import InvalidRequestError


def amounts(values: Mapping[str, Any] | None) -> str:
    """Amounts of resources, such as ``cpu 8, gpu 4``."""
    from schedulemesh.domain.resources import amounts_text

    return amounts_text(values or {})


def owner_limit(limit: Mapping[str, Any]) -> str:
    """An owner's limits in a pool, such as ``gpu 8, queued 200``; - stands for what is not limited."""
    entries = {name: value for name, value in limit.items() if name != "custom"}
    entries |= limit.get("custom") or {}
    parts = [f"{field_name(name)} {number(value)}" for name, value in entries.items()]
    return ", ".join(parts) or phrase("cell_no_limit")


def budget(entry: Mapping[str, Any] | None) -> str:
    """A budget, such as ``100 GPU-hours, period month, then hold``; - for none."""
    if entry is None:
        return "-"
    hours = entry.get("gpu_hours")
    others = [
        f"{field_name(name)} {text(value)}" for name, value in entry.items() if name != "gpu_hours"
    ]
    total = [phrase("cell_gpu_hours", hours=number(hours))] if hours is not None else []
    return ", ".join((*total, *others)) if others or total else phrase("cell_no_budget")


def field_name(name: str) -> str:
    """The name of a field in the language of this command."""
    if language() == "en":
        return name
    from schedulemesh.cli.headings import name_of_fact

    return name_of_fact(name.replace("_", " "))


def duration(seconds: float | None) -> str:
    """A duration in its two largest units: 42s, 3m07s, 5h12m, 2d04h."""
    return "-" if seconds is None else duration_text(seconds)


def short_duration(seconds: float) -> str:
    """A duration, of which tenths of a second are of interest below ten: 0.4s, 12s, 3m07s."""
    return f"{seconds:.1f}s" if seconds < 10 else duration_text(seconds)


def remaining(seconds: float | None) -> str:
    """The time that a task still runs; of one that is over its time, or of unknown length, there is none."""
    return duration(seconds or None)


def time_until(at: float | None) -> str:
    """The time from now until then; of what is over there is none."""
    return "-" if at is None else duration(max(0.0, at - time.time()))


def local_time(at: float | None) -> str:
    """Seconds since 1970 as a local time without the year."""
    return "-" if at is None else local_time_text(at)


def number(value: float | None) -> str:
    """A number without digits that say nothing."""
    return "-" if value is None else f"{value:.12g}"


def names(value: object) -> str:
    """Several names, or those of a dict, in one cell; a dash for none."""
    if not isinstance(value, (list, tuple, dict)):
        return text(value)
    return ", ".join(map(str, value)) or "-"


def labels(values: Mapping[str, str] | None) -> str:
    """Labels as they are written in filters, one after the other."""
    return ", ".join(f"{key}={value}" for key, value in (values or {}).items())


def text(value: object) -> str:
    """Any other value: nothing for None, yes and no for a flag, in the language of this command."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return phrase("cell_yes" if value else "cell_no")
    return number(value) if isinstance(value, float) else str(value)


def data(value: object) -> str:
    """Any value in one line, what has parts as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else text(value)


def seconds(text: str, what: str) -> float:
    """A duration as people write it: ``90s``, ``30m``, ``1h30m``, ``7d``, or a number of seconds. Raises
    InvalidRequestError.
    """
    from schedulemesh.domain.numbers import span_of

    return _with_unit(text, what, span_of, "a duration such as 90s, 30m, 1h30m, 12h, 7d or 2w")


def megabytes(text: str, what: str) -> float:
    """A size as people write it: ``512MB``, ``64GB``, or a number of MB. Raises InvalidRequestError."""
    from schedulemesh.domain.resources import size_of

    return _with_unit(text, what, size_of, "a size such as 512MB, 64GB or 1TB, or a number of MB")


def _with_unit(word: str, what: str, parse: Callable[[str], float | None], allowed: str) -> float:
    """A number, or an amount with a unit that ``parse`` knows. Raises InvalidRequestError."""
    amount = _plain_number(word)
    amount = parse(word) if amount is None else amount
    if amount is None:
        raise InvalidRequestError(f"{what} is {word!r}; allowed is {allowed}")
    return amount


def _plain_number(text: str) -> float | None:
    """A number without a unit; None: it is none, or below zero."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def moment(text: str, now: float | None = None, what: str = "--since") -> float:
    """Seconds since 1970 of a time as people write it, see ``parse_time``. Raises InvalidRequestError."""
    from schedulemesh.protocol.times import parse_time

    return parse_time(text, what, now) or 0.0
