"""Patterns of task names: what the names of repeated runs of the same work have in common."""

from __future__ import annotations

import re
from functools import lru_cache

#: What differs from run to run: a UUID; a word of seven or more hexadecimal digits, one of the first eight a
#: decimal one, such as a short commit id; a date, a time or any other number.
_VARYING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?<![0-9a-z])(?=[a-f]{0,7}[0-9])[0-9a-f]{7,}(?![0-9a-z])"
    r"|[0-9]+(?:[tz](?![a-z]))?",
    re.IGNORECASE,
)
#: Varying parts with nothing but separators between them.
_REPEATED = re.compile(r"\*(?:[-_.:+/ ]*\*)+")

#: What a name has in it where more than a number at its end may vary; most have none.
_SPECIAL = frozenset("0123456789*")
#: Patterns that are kept, because those of running tasks are asked for again and again.
_CACHED = 16_384


def name_pattern(name: str) -> str:
    """The name with "*" for numbers, dates, UUIDs and hexadecimal ids: of ``train-17`` it is ``train-*``.

    Numbers with only separators between them are one "*": of ``eval_2026-11-23T10:15_7`` it is ``eval_*``.
    """
    stem = name.rstrip("0123456789")
    if not _SPECIAL.isdisjoint(stem):
        return _varied(name)
    return stem if stem == name else stem + "*"


@lru_cache(maxsize=_CACHED)
def _varied(name: str) -> str:
    return _REPEATED.sub("*", _VARYING.sub("*", name))
