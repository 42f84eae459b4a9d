"""Sums up what was used in each hour, by pool, owner, label and flavor.

The use of an attempt is counted when its resources have become free, in each hour in which it ran; waiting
when it starts, or ends without a start, in that hour; its end, and the work that its eviction lost, when it
ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from typing import Any

import msgspec

from schedulemesh.domain.resources import UNIT
from schedulemesh.store.history.attempts import Attempt

HOUR_S = 3600.0
#: Seconds that are nothing.
_LEAST_S = 0.001


class Dimension(IntEnum):
    """By what the use of resources is summed up."""

    POOL = 0
    OWNER = 1
    LABEL = 2
    FLAVOR = 3


class Sums(msgspec.Struct, kw_only=True, gc=False):
    """What was used; see the columns of ``schema.usage``."""

    cpu_s: float = 0.0
    gpu_s: float = 0.0
    memory_mb_s: float = 0.0
    waited_s: float = 0.0
    lost_s: float = 0.0
    lost_gpu_s: float = 0.0
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: int = 0
    preempted: int = 0

    def use(self, attempt: Attempt, seconds: float) -> None:
        """Add the resources of an attempt for so many seconds."""
        self.cpu_s += attempt.cpu * seconds / UNIT
        self.gpu_s += attempt.gpu * seconds / UNIT
        self.memory_mb_s += attempt.memory * seconds / UNIT

    def start(self, attempt: Attempt) -> None:
        """Add a start, and the time for which it was waited."""
        self.started += 1
        if attempt.started_at is not None and attempt.queued_at is not None:
            self.waited_s += max(0.0, attempt.started_at - attempt.queued_at)

    def end(self, attempt: Attempt) -> None:
        """Add the end of an attempt; one that returned to the queue before it ran is counted nowhere."""
        if attempt.state in ("completed", "failed", "cancelled", "lost", "preempted"):
            setattr(self, attempt.state, getattr(self, attempt.state) + 1)
        if (
            attempt.started_at is None
            and attempt.queued_at is not None
            and attempt.ended_at is not None
        ):
            self.waited_s += max(0.0, attempt.ended_at - attempt.queued_at)
        if attempt.lost_s is not None:
            self.lost_s += attempt.lost_s
            self.lost_gpu_s += attempt.lost_s * attempt.gpu / UNIT


NAMES = Sums.__struct_fields__


def remainder(total: Iterable[Sums], parts: Iterable[Sums]) -> Sums | None:
    """What is in the total and in none of its parts; None: nothing is."""
    rest = Sums()
    for sums, sign in (*((one, 1) for one in total), *((one, -1) for one in parts)):
        for name in NAMES:
            setattr(rest, name, getattr(rest, name) + sign * getattr(sums, name))
    for name in NAMES:
        # Differences of sums of seconds are exact to much less than this.
        if getattr(rest, name) < _LEAST_S:
            setattr(rest, name, getattr(Sums(), name))
    return None if rest == Sums() else rest


#: (dimension, hour, name).
Key = tuple[int, int, str]


class Booking:
    """Collects what is to be added to the table."""

    def __init__(self) -> None:
        self.sums: dict[Key, Sums] = {}

    def start(self, attempt: Attempt) -> None:
        """A task has started."""
        for sums in self._at(attempt, attempt.started_at):
            sums.start(attempt)

    def end(self, attempt: Attempt) -> None:
        """A task has ended."""
        for sums in self._at(attempt, attempt.ended_at):
            sums.end(attempt)

    def release(self, attempt: Attempt) -> None:
        """The resources of an attempt are free."""
        if attempt.started_at is None or attempt.released_at is None:
            return
        for hour, seconds in hours(attempt.started_at, attempt.released_at):
            for sums in self._sums_of(attempt, hour):
                sums.use(attempt, seconds)

    def rows(self, journal: int) -> list[dict[str, Any]]:
        """The rows to add to the table."""
        return [
            {"journal": journal, "dimension": dimension, "hour": hour, "name": name}
            | msgspec.structs.asdict(sums)
            for (dimension, hour, name), sums in self.sums.items()
        ]

    def _at(self, attempt: Attempt, at: float | None) -> Iterator[Sums]:
        return self._sums_of(attempt, int((at or 0.0) // HOUR_S))

    def _sums_of(self, attempt: Attempt, hour: int) -> Iterator[Sums]:
        """The sums of an hour in which an attempt counts: of its pool, owner, labels and flavor."""
        for dimension, name in names_of(*group_of(attempt)):
            key = (dimension, hour, name)
            sums = self.sums.get(key)
            if sums is None:
                sums = self.sums[key] = Sums()
            yield sums


def group_of(attempt: Attempt) -> tuple[str, str, str, str]:
    """What of an attempt decides for what its use is counted: the arguments of ``names_of``."""
    return (attempt.pool_name, attempt.owner, attempt.labels, attempt.flavor)


@lru_cache(maxsize=4_096)
def names_of(
    pool_name: str, owner: str, labels: str, flavor: str = ""
) -> tuple[tuple[int, str], ...]:
    """What the use of an attempt is counted for: its pool, its owner, each of its labels (where it has none,
    the empty name), and the flavor in which it ran.
    """
    names = [(int(Dimension.POOL), pool_name), (int(Dimension.OWNER), owner)]
    if labels:
        by_key: dict[str, str] = msgspec.json.decode(labels)
        names += [(int(Dimension.LABEL), f"{key}={value}") for key, value in by_key.items()]
    else:
        names.append((int(Dimension.LABEL), ""))
    if flavor:
        names.append((int(Dimension.FLAVOR), flavor))
    return tuple(names)


def hours(begin: float, end: float) -> Iterator[tuple[int, float]]:
    """The hours since 1970 that a time span touches, each with how many seconds of it."""
    hour = int(begin // HOUR_S)
    while begin < end:
        until = min(end, (hour + 1) * HOUR_S)
        yield hour, until - begin
        begin, hour = until, hour + 1
