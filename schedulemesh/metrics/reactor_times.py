"""How long the reactor takes to decide and to make facts durable, and whether the journal can be written."""

from __future__ import annotations

import time
from bisect import bisect_left
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


class ReactorTimes:
    """Filled in by the reactor itself: these are no facts."""

    def __init__(self) -> None:
        # Filled in for every decision, so without the look-up by labels that a Histogram makes.
        self._decided = Distribution(len(_BOUNDS))
        self._written = Distribution(len(_BOUNDS))
        self._errors = Counter(c.JOURNAL_ERRORS)
        self._errors.add(_NO_LABELS, 0.0)
        self._recent_errors = Window(_RECENT_S)
        self._writable = True

    def decided(self, seconds: float) -> None:
        """The engine took so long for a decision."""
        self._decided.counts[bisect_left(_BOUNDS, seconds)] += 1
        self._decided.sum += seconds

    def written(self, seconds: float) -> None:
        """Facts were durable so long after their decision."""
        self._written.counts[bisect_left(_BOUNDS, seconds)] += 1
        self._written.sum += seconds

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
        yield c.DECISION, [Sample(_NO_LABELS, self._decided)]
        yield c.JOURNAL_WRITE, [Sample(_NO_LABELS, self._written)]
        yield family_of(self._errors)
        recent, _ = self._recent_errors.sums(time.monotonic())
        yield c.RECENT_JOURNAL_ERRORS, [Sample((), recent)]
        yield c.JOURNAL_WRITABLE, [Sample((), float(self._writable))]
