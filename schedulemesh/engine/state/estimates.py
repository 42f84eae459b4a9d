"""How long tasks run, as far as earlier runs tell: the last durations of completed tasks that were alike.

Runs are alike at four levels, the most specific first:

1. the same owner, name pattern (``domain.task_kinds``) and size; where no owner is known, the same pool,
   name pattern and size;
2. the same owner and size;
3. the same pool and size;
4. the same pool.

The size is the GPUs that a task asks for, or its CPUs where it asks for no GPU. An estimate is made from the
most specific level with at least three runs: their median, and the quartiles as its spread. Only completed
tasks are learned from, each with the time that it ran in all its attempts together.

A task that has run for the time ``a`` already is compared with the runs that took longer than ``a``. Where
none did, its estimate is the longest run doubled as often as needed to exceed ``a``: of processes of age
``a``, half run for another ``a`` (Harchol-Balter and Downey, "Exploiting Process Lifetime Distributions for
Dynamic Load Balancing", ACM TOCS 15(3), 1997). So the estimated end of a running task is always in the
future, and stays the same until it is outlived.

At most ``_KEPT`` durations of each of ``_KEYS`` sorts of runs are kept; those of the sorts that were learned
from least recently are forgotten first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from schedulemesh.domain.task_kinds import TaskKind

#: The least number of runs that an estimate is made from.
ENOUGH = 3
#: How many durations are kept of each sort of runs, and of how many sorts.
_KEPT = 32
_KEYS = 4096
#: The shortest time that is doubled to exceed an age, in seconds.
_SHORTEST_S = 1.0


class RunKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A sort of runs: what is named is the same for all of them."""

    #: Empty: of any owner.
    owner: str = ""
    #: Empty: in any pool.
    pool_name: str = ""
    #: Empty: of any name.
    pattern: str = ""
    #: GPUs, in units of 1/10,000; None: any number.
    gpu: int | None = None
    #: CPUs, in the same units, of runs without GPUs; None: any number, or they have GPUs.
    cpu: int | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a task runs in all, in seconds."""

    #: The median.
    seconds: float
    #: The quartiles: a quarter of the runs took less, a quarter took more.
    low_s: float
    high_s: float
    #: From how many runs.
    runs: int
    #: From which sort of runs.
    key: RunKey


@lru_cache(maxsize=_KEYS)
def _keys_of(kind: TaskKind) -> tuple[RunKey, ...]:
    """The sorts of runs that a kind of tasks belongs to, the most specific first."""
    in_pool = RunKey(pool_name=kind.pool_name, gpu=kind.gpu, cpu=kind.cpu)
    any_size = RunKey(pool_name=kind.pool_name)
    of_owner = RunKey(owner=kind.owner, gpu=kind.gpu, cpu=kind.cpu)
    alike = of_owner if kind.owner else in_pool
    named = msgspec.structs.replace(alike, pattern=kind.pattern)
    return tuple(dict.fromkeys((named, alike, in_pool, any_size)))


class _History:
    """The last durations of one sort of runs, and what was estimated from them."""

    __slots__ = ("_estimates", "_ordered", "_ordered_at", "key", "learned_at", "recent")

    def __init__(self, key: RunKey, durations: Iterable[float] = ()) -> None:
        self.key = key
        #: In seconds, oldest first.
        self.recent = deque(durations, _KEPT)
        #: The larger, the later one was added; different for each history.
        self.learned_at = 0
        #: They in ascending order, and what was estimated from them, by how many of them a task has outlived:
        #: as they were at ``_ordered_at``.
        self._ordered: list[float] = []
        self._estimates: dict[int, Estimate] = {}
        self._ordered_at = 0

    def estimate(self, age_s: float) -> Estimate:
        if self._ordered_at != self.learned_at:
            self._ordered_at = self.learned_at
            self._ordered, self._estimates = sorted(self.recent), {}
        ordered = self._ordered
        shorter = bisect_right(ordered, age_s) if age_s > 0.0 else 0
        if shorter == len(ordered):
            seconds = expected_total_s(ordered[-1], age_s)
            return self._of([seconds])
        estimate = self._estimates.get(shorter)
        if estimate is None:
            estimate = self._estimates[shorter] = self._of(ordered[shorter:])
        return estimate

    def _of(self, durations: Sequence[float]) -> Estimate:
        """The estimate from these durations, in ascending order."""
        low_s, seconds, high_s = (_quantile(durations, part) for part in (0.25, 0.5, 0.75))
        return Estimate(
            seconds=seconds, low_s=low_s, high_s=high_s, runs=len(self.recent), key=self.key
        )


class Estimates:
    """The last durations of completed tasks, by sort of runs."""

    def __init__(self) -> None:
        self._by_key: dict[RunKey, _History] = {}
        #: The histories of kinds that were learned lately, the most specific first; it only spares work.
        self._by_kind: dict[TaskKind, tuple[_History, ...]] = {}
        #: Increases with every run that is learned.
        self.version = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def learn(self, kind: TaskKind, seconds: float) -> None:
        """A task of this kind was completed after so many seconds of running."""
        for history in self._by_kind.get(kind) or self._begin(kind):
            self.version += 1
            history.recent.append(seconds)
            history.learned_at = self.version
        if len(self._by_key) > _KEYS:
            self._forget()

    def estimate(self, kind: TaskKind, age_s: float = 0.0) -> Estimate | None:
        """How long a task of this kind runs in all that has run for so long; None: too few runs are known."""
        for history in self._by_kind.get(kind) or self._known(kind):
            if len(history.recent) >= ENOUGH:
                return history.estimate(age_s)
        return None

    def items(self) -> list[tuple[RunKey, tuple[float, ...]]]:
        """All that is known: each sort with its last durations, the one learned from last comes last."""
        return [(history.key, tuple(history.recent)) for history in self._in_order()]

    def restore(self, items: Iterable[tuple[RunKey, tuple[float, ...]]]) -> None:
        """Add what ``items`` gave."""
        for key, durations in items:
            self.version += 1
            history = self._by_key[key] = _History(key, durations)
            history.learned_at = self.version

    def _in_order(self) -> list[_History]:
        return sorted(self._by_key.values(), key=attrgetter("learned_at"))

    def _begin(self, kind: TaskKind) -> tuple[_History, ...]:
        """The histories of a kind, with new ones where there are none yet."""
        by_key = self._by_key
        histories = tuple(by_key.setdefault(key, _History(key)) for key in _keys_of(kind))
        if len(self._by_kind) >= _KEYS:
            self._by_kind.clear()
        self._by_kind[kind] = histories
        return histories

    def _known(self, kind: TaskKind) -> Iterator[_History]:
        for key in _keys_of(kind):
            if key in self._by_key:
                yield self._by_key[key]

    def _forget(self) -> None:
        """Forget the quarter that was learned from least recently, for it takes time to find out which."""
        remaining = self._in_order()[-(3 * _KEYS // 4) :]
        self._by_key = {history.key: history for history in remaining}
        self._by_kind.clear()


def expected_total_s(expected_s: float, age_s: float) -> float:
    """For how many seconds a task runs in all that was expected to run for ``expected_s`` and has run for
    ``age_s``: the expectation, doubled until it is longer than its age.
    """
    seconds = max(expected_s, _SHORTEST_S)
    while seconds <= age_s:
        seconds *= 2.0
    return seconds


def _quantile(ordered: Sequence[float], part: float) -> float:
    """A quantile of ascending numbers, interpolated between the two nearest."""
    at = part * (len(ordered) - 1)
    lower = int(at)
    if lower + 1 == len(ordered):
        return ordered[lower]
    return ordered[lower] + (at - lower) * (ordered[lower + 1] - ordered[lower])
