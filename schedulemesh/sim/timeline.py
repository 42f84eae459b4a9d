"""What happened in a simulation over time: how many jobs waited, and what each pool's jobs held."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from schedulemesh.domain.numbers import MAX_DURATION_S, parse_positive
from schedulemesh.domain.resources import UNIT
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.simulation import SimulationResult
from schedulemesh.sim.usage import Kind, units_of

#: (time, value from then on), in the order of time; times are in seconds of the trace.
Steps = tuple[tuple[float, float], ...]
#: The most intervals that a simulation is divided into.
MOST_INTERVALS = 10_000


class PoolTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one pool. GPUs are CPUs where the cluster has no GPUs."""

    quota_gpus: float
    waiting: Steps
    held_gpus: Steps
    #: What was held as a part of the quota: of its GPUs, or of its CPUs where it has no GPUs.
    utilisation: Steps


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """The means over one interval, of one pool or of all (the empty name)."""

    pool: str
    #: Its begin, in seconds of the trace.
    time_s: float
    #: Jobs that waited for resources, also those that wait again after an eviction.
    waiting: float
    held_gpus: float
    #: What was held as a part of the pool's quota, of CPUs where it has no GPUs, or of the whole cluster.
    utilisation: float


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between the first submission and the last end."""

    begin_s: float
    end_s: float
    #: Of the nodes that were there.
    capacity_gpus: Steps
    pools: dict[str, PoolTimeline]
    #: The delay of every job that has ended, shortest first.
    delays_s: tuple[float, ...]

    def over_time(self, interval_s: float) -> list[Interval]:
        """Every interval of so many seconds: first those of all pools together, then of each. The last one
        may be shorter. Raises InvalidRequestError where the intervals were too many.
        """
        interval_s = self._checked(interval_s)
        waiting = {n: self._means(pool.waiting, interval_s) for n, pool in self.pools.items()}
        held_gpus = {n: self._means(pool.held_gpus, interval_s) for n, pool in self.pools.items()}
        capacity = self._means(self.capacity_gpus, interval_s)
        totals = _sums(held_gpus.values())
        parts = [h / size if size else 0.0 for h, size in zip(totals, capacity, strict=True)]
        intervals = self._intervals("", interval_s, _sums(waiting.values()), totals, parts)
        for name, pool in self.pools.items():
            parts = self._means(pool.utilisation, interval_s)
            intervals += self._intervals(name, interval_s, waiting[name], held_gpus[name], parts)
        return intervals

    def largest(self) -> float:
        """The most GPUs that the cluster had at any time."""
        return max(gpus for _, gpus in self.capacity_gpus)

    def divided(self, count: int) -> float:
        """The length of an interval, in seconds, of which the timeline has so many."""
        return max(1.0, (self.end_s - self.begin_s) / count)

    def _checked(self, interval_s: float) -> float:
        interval_s = parse_positive(interval_s, "the interval", MAX_DURATION_S)
        least = (self.end_s - self.begin_s) / MOST_INTERVALS
        if interval_s < least:
            raise InvalidRequestError(
                f"intervals of {interval_s:g} s are more than {MOST_INTERVALS} in this simulation; choose "
                f"{math.ceil(least)} s or more"
            )
        return interval_s

    def _means(self, steps: Steps, interval_s: float) -> list[float]:
        return interval_means(steps, self.begin_s, self.end_s, interval_s)

    def _intervals(
        self,
        name: str,
        interval_s: float,
        waiting: Sequence[float],
        held_gpus: Sequence[float],
        parts: Sequence[float],
    ) -> list[Interval]:
        return [
            Interval(
                pool=name,
                time_s=self.begin_s + number * interval_s,
                waiting=waits,
                held_gpus=holds,
                utilisation=part,
            )
            for number, (waits, holds, part) in enumerate(
                zip(waiting, held_gpus, parts, strict=True)
            )
        ]


def busy_period(result: SimulationResult) -> tuple[float, float]:
    """When the first job was submitted and the last one ended; both the begin where there is none."""
    begin = min((run.submitted_at for run in result.runs), default=result.begin)
    return begin, max((run.ended_at or begin for run in result.runs), default=begin)


def timeline(result: SimulationResult) -> Timeline:
    """The timeline of a simulation."""
    ended = [run for run in result.runs if run.ended_at is not None]
    begin, end = busy_period(result)

    return Timeline(
        begin_s=begin - result.begin,
        end_s=end - result.begin,
        capacity_gpus=result.capacity,
        pools={
            name: PoolTimeline(
                quota_gpus=units_of(usage.quota, result.kind) / UNIT,
                waiting=tuple((time - result.begin, n) for time, n in usage.waiting_series),
                held_gpus=held_steps(result, name, result.kind, UNIT),
                utilisation=held_steps(result, name, usage.kind, units_of(usage.quota, usage.kind)),
            )
            for name, usage in result.pools.items()
        },
        delays_s=tuple(sorted(run.delay_s for run in ended)),
    )


def held_steps(result: SimulationResult, pool: str, kind: Kind, units: float) -> Steps:
    """What the jobs of a pool held of one kind, as a part of so many units; of none it is always 0."""
    series = result.pools[pool].held_series
    return tuple(
        (time - result.begin, units_of(resources, kind) / units if units else 0.0)
        for time, resources in series
    )


def interval_means(
    steps: Sequence[tuple[float, float]], begin_s: float, end_s: float, interval_s: float
) -> list[float]:
    """The mean of a step function over each interval from ``begin_s`` to ``end_s``, weighted by time."""
    count = max(1, math.ceil((end_s - begin_s) / interval_s))
    sums = [0.0] * count
    for (time_s, value), (next_s, _) in pairwise([*steps, (end_s, 0.0)]):
        since, until = max(time_s, begin_s) - begin_s, min(next_s, end_s) - begin_s
        if not value or since >= until:
            continue
        last = min(count - 1, int(until // interval_s))
        for number in range(int(since // interval_s), last + 1):
            shared = min(until, (number + 1) * interval_s) - max(since, number * interval_s)
            sums[number] += value * max(0.0, shared)
    lengths = (min(interval_s, end_s - begin_s - n * interval_s) for n in range(count))
    return [
        total / length if length > 0 else 0.0 for total, length in zip(sums, lengths, strict=True)
    ]


def mean_of(steps: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """The mean of a step function from ``begin_s`` to ``end_s``, weighted by time; 0 where they are equal."""
    if end_s <= begin_s:
        return 0.0
    return interval_means(steps, begin_s, end_s, end_s - begin_s)[0]


def _sums(series: Iterable[Sequence[float]]) -> list[float]:
    return [sum(values) for values in zip(*series, strict=True)]
