"""How long the reactor takes to decide and to make facts durable, and whether the journal can be written."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator

from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.values import (
    Counter,
    Distribution,
    Family,
    Sample,
    Window,
    family_of,
)

_NO_LABELS = ()
#: The bounds of both histograms.
_BOUNDS = c.DECISION.buckets
#: Seconds for which an error of the journal is recent.
_RECENT_S = 300.0
#: Times that are kept one by one until they are counted.
_UNCOUNTED = 2_000


class _Times:
    """A histogram that is filled in for every decision: the times are counted many at once."""

    __slots__ = ("_counted", "_uncounted")

    def __init__(self) -> None:
        self._counted = Distribution(len(_BOUNDS))
        self._uncounted: list[float] = []

    def add(self, seconds: float) -> None:
        """Add a time."""
        self._uncounted.append(seconds)
        if len(self._uncounted) >= _UNCOUNTED:
            self._count()

    def distribution(self) -> Distribution:
        """All times so far."""
        self._count()
        return self._counted

    def _count(self) -> None:
        times, self._uncounted = sorted(self._uncounted), []
        counts, before = self._counted.counts, 0
        for bucket, bound in enumerate(_BOUNDS):
            upto = bisect_right(times, bound, before)
            counts[bucket] += upto - before
            before = upto
        counts[-1] += len(times) - before
        self._counted.sum += sum(times)


class ReactorTimes:
    """Filled in by the reactor itself: these are no facts."""

    def __init__(self) -> None:
        self._decided, self._written = _Times(), _Times()
        self._errors = Counter(c.JOURNAL_ERRORS)
        self._errors.add(_NO_LABELS, 0.0)
        self._recent_errors = Window(_RECENT_S)
        self._writable = True

    def decided(self, seconds: float) -> None:
        """The engine took so long for a decision."""
        self._decided.add(seconds)

    def written(self, seconds: float) -> None:
        """Facts were durable so long after their decision."""
        self._written.add(seconds)

    def failed(self) -> None:
        """The journal cannot be written."""
        self._errors.add(_NO_LABELS)
        self._recent_errors.add(time.monotonic(), 1.0)
        self._writable = False

    def healed(self) -> None:
        """The journal can be written again."""
        self._writable = True

    def families(self) -> Iterator[Family]:
        """All of it."""
        yield c.DECISION, [Sample(_NO_LABELS, self._decided.distribution())]
        yield c.JOURNAL_WRITE, [Sample(_NO_LABELS, self._written.distribution())]
        yield family_of(self._errors)
        recent, _ = self._recent_errors.sums(time.monotonic())
        yield c.RECENT_JOURNAL_ERRORS, [Sample((), recent)]
        yield c.JOURNAL_WRITABLE, [Sample((), float(self._writable))]
