"""Aggregates the values that agents report, over a window bounded in time and in size.

Kept are the newest values of each metric of each agent. Sums over pools and labels are made from them when
they are asked for, so that a report costs the same however many pools and labels there are.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from schedulemesh.api.metrics import ReportedMetric

#: Seconds that a value counts.
WINDOW_S = 300.0
#: The newest values of a metric of an agent that are kept.
MAX_VALUES = 128
#: Metrics of one agent, and of all agents; further ones are not aggregated.
MAX_NAMES, MAX_SERIES = 64, 50_000
#: The length of a metric's name, in characters, and the absolute amount of a value.
MAX_NAME, MAX_AMOUNT = 200, 1e100
#: Values from which one row is made. Of a group with more, the newest of each agent are taken.
MAX_MERGED = 10_000
#: Nesting levels of a report whose numbers are aggregated, as "outer.inner".
_LEVELS = 3


class Series:
    """The newest values of one metric of one agent, with the times at which they arrived."""

    __slots__ = ("_oldest", "_times", "_values")

    def __init__(self) -> None:
        self._times = array("d")
        self._values = array("d")
        #: Where the oldest is, once the arrays are full.
        self._oldest = 0

    def add(self, at: float, value: float) -> None:
        """Add a value; times never decrease by much."""
        if len(self._times) < MAX_VALUES:
            self._times.append(at)
            self._values.append(value)
            return
        self._times[self._oldest], self._values[self._oldest] = at, value
        self._oldest = (self._oldest + 1) % MAX_VALUES

    @property
    def last_at(self) -> float:
        """When its newest value arrived."""
        return self._times[self._oldest - 1]

    def newest(self, since: float, most: int) -> tuple[Sequence[float], Sequence[float]]:
        """Times and values, oldest first, of at most so many that arrived at ``since`` or later."""
        times = self._times[self._oldest :] + self._times[: self._oldest]
        values = self._values[self._oldest :] + self._values[: self._oldest]
        begin = max(bisect_left(times, since), len(times) - most)
        return times[begin:], values[begin:]


class Aggregates:
    """Values by agent and metric."""

    def __init__(self) -> None:
        self._by_agent: dict[str, dict[str, Series]] = {}
        self._count = 0
        #: Values that were not aggregated, because there were too many metrics.
        self.dropped = 0

    def add(self, agent_name: str, report: Mapping[str, object], now: float) -> None:
        """Add the numbers of a report. Other values are ignored: texts, flags, lists, numbers that are not
        finite or out of all proportion.
        """
        by_name = self._by_agent.get(agent_name, {})
        old_are_removed = False
        for name, value in numbers_in(report):
            series = by_name.get(name)
            if series is None:
                # Once per report: what it adds itself is not old, and it may have thousands of numbers.
                if self._is_full(by_name) and not old_are_removed:
                    self._remove_old(by_name, now)
                    old_are_removed = True
                if self._is_full(by_name):
                    self.dropped += 1
                    continue
                series = by_name[name] = Series()
                self._by_agent[agent_name] = by_name
                self._count += 1
            series.add(now, value)

    def _is_full(self, by_name: dict[str, Series]) -> bool:
        """Whether no further metric of this agent can be aggregated: it has too many, or all have."""
        return len(by_name) >= MAX_NAMES or self._count >= MAX_SERIES

    def _remove_old(self, by_name: dict[str, Series], now: float) -> None:
        """Remove the metrics of an agent whose values have all left the window, to make room for others."""
        for name in [name for name, one in by_name.items() if one.last_at < now - WINDOW_S]:
            del by_name[name]
            self._count -= 1

    def forget(self, agent_name: str) -> None:
        """Remove the values of an agent that has ended."""
        self._count -= len(self._by_agent.pop(agent_name, ()))

    def agents(self) -> list[str]:
        """The agents that have reported."""
        return list(self._by_agent)

    def rows(
        self, agents: Sequence[str], now: float, names: Iterable[str] = ()
    ) -> Iterator[ReportedMetric | None]:
        """One row for each metric of these agents together; None: a place to pause. ``names``: only these."""
        only = set(names)
        by_name: dict[str, list[Series]] = {}
        for number, agent in enumerate(agents, 1):
            for name, series in self._by_agent.get(agent, {}).items():
                if not only or name in only:
                    by_name.setdefault(name, []).append(series)
            if not number % 100:
                yield None
        for name in sorted(by_name):
            yield from _row(name, by_name[name], now)


def numbers_in(
    report: Mapping[str, object], prefix: str = "", levels: int = _LEVELS
) -> Iterator[tuple[str, float]]:
    """The numbers of a report by name; those of a nested dict as "outer.inner"."""
    for key, value in report.items():
        name = prefix + key
        if len(name) > MAX_NAME:
            continue
        if type(value) is float or type(value) is int:
            if -MAX_AMOUNT <= value <= MAX_AMOUNT:
                yield name, float(value)
        elif isinstance(value, dict) and levels > 1:
            yield from numbers_in(value, f"{name}.", levels - 1)


def _row(name: str, series: Sequence[Series], now: float) -> Iterator[ReportedMetric | None]:
    """The row of one metric; none where all values are older than the window."""
    times: list[float] = []
    values: list[float] = []
    last, agents = (-math.inf, 0.0), 0
    most = max(1, MAX_MERGED // len(series))
    for number, one in enumerate(series, 1):
        own_times, own_values = one.newest(now - WINDOW_S, most)
        if own_times:
            agents += 1
            last = max(last, (own_times[-1], own_values[-1]))
            times.extend(own_times)
            values.extend(own_values)
        if not number % 100:
            yield None
    if not values:
        return
    values.sort()
    yield {
        "metric": name,
        "agents": agents,
        "count": len(values),
        "last": last[1],
        "last_at": last[0],
        "since": min(times),
        "mean": math.fsum(values) / len(values),
        "min": values[0],
        "max": values[-1],
        "p50": quantile(values, 0.5),
        "p95": quantile(values, 0.95),
    }


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest of the values, in ascending order, that at least this part of them does not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
