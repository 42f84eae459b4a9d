"""Counters and histograms, kept by label values, and means over the last minutes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator

from schedulemesh.metrics.catalogue import Metric

#: The values of a metric's labels, in their order.
Labels = tuple[str, ...]


class Counter:
    """A counter for each combination of label values."""

    __slots__ = ("metric", "values")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float = 1.0) -> None:
        """Add an amount, which is not negative."""
        values = self.values
        values[labels] = values[labels] + amount if labels in values else amount


class Distribution:
    """What a histogram holds for one combination of label values."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        #: Observations in each bucket, and above the last.
        self.counts = [0] * (buckets + 1)
        self.sum = 0.0


class Histogram:
    """A histogram for each combination of label values."""

    __slots__ = ("metric", "recent", "values")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, Distribution] = {}
        #: The last observations, for who needs them one by one, and removes them; None: nobody does.
        self.recent: deque[tuple[Labels, float]] | None = None

    def observe(self, labels: Labels, value: float) -> None:
        """Add an observation."""
        distribution = self.values.get(labels)
        if distribution is None:
            distribution = self.values[labels] = Distribution(len(self.metric.buckets))
        distribution.counts[bisect_left(self.metric.buckets, value)] += 1
        distribution.sum += value
        if self.recent is not None:
            self.recent.append((labels, value))


class Window:
    """Sums of two amounts over the last seconds, kept in parts."""

    __slots__ = ("_next_part_at", "_part_s", "_parts", "span_s")

    def __init__(self, span_s: float, parts: int = 30) -> None:
        self.span_s = span_s
        #: From when on an amount begins a part.
        self._next_part_at = -math.inf
        self._part_s = span_s / parts
        #: [number of the part, first sum, second sum], oldest first.
        self._parts: deque[list[float]] = deque()

    def add(self, at: float, first: float, second: float = 0.0) -> None:
        """Add to both sums at a time in seconds, which never decreases by much."""
        if at >= self._next_part_at or not self._parts:
            number = at // self._part_s
            self._next_part_at = (number + 1.0) * self._part_s
            self._parts.append([number, 0.0, 0.0])
            self._forget(at)
        part = self._parts[-1]
        part[1] += first
        part[2] += second

    def sums(self, now: float) -> tuple[float, float]:
        """Both sums over the span until now."""
        self._forget(now)
        return sum(p[1] for p in self._parts), sum(p[2] for p in self._parts)

    def _forget(self, now: float) -> None:
        oldest = (now - self.span_s) // self._part_s
        while self._parts and self._parts[0][0] <= oldest:
            self._parts.popleft()


class Sample:
    """One value of a metric; ``suffix`` and ``bound`` are those of a histogram's line."""

    __slots__ = ("labels", "value")

    def __init__(self, labels: Labels, value: float | Distribution) -> None:
        self.labels = labels
        self.value = value


#: A metric with its samples. None among them is a place to pause: nothing that was read is needed again.
Family = tuple[Metric, Iterable["Sample | None"]]


def family_of(metric: Counter | Histogram) -> Family:
    """The samples of a counter or a histogram."""
    return metric.metric, _samples(metric)


def _samples(metric: Counter | Histogram) -> Iterator[Sample]:
    for labels in list(metric.values):
        yield Sample(labels, metric.values[labels])
