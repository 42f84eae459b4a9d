"""Kinds of tasks: those that are expected to run equally long, because their names follow one pattern."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from schedulemesh.domain.arrays import member_id
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec

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


class TaskKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What tasks of the same owner, pool, name pattern and size have in common."""

    #: Empty: not known.
    owner: str = ""
    pool_name: str = ""
    #: See ``name_pattern``.
    pattern: str
    #: The GPUs that they ask for, in units of 1/10,000; None: as much as their pool gives by default.
    gpu: int | None = None
    #: The CPUs, in the same units, where they ask for no GPU.
    cpu: int | None = None

    @classmethod
    def of(cls, spec: TaskSpec, need: Resources | None) -> TaskKind:
        """The kind of a task that asks for these resources; None: for what its pool gives by default."""
        return cls(
            owner=spec.owner,
            pool_name=spec.pool_name,
            pattern=name_pattern(member_id(spec.task_id, 0) if spec.array else spec.task_id),
            gpu=None if need is None else need.gpu,
            cpu=None if need is None or need.gpu else need.cpu,
        )


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
