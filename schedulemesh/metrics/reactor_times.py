"""How long the reactor takes to decide and to make facts durable, and whether the journal can be written."""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.values import Counter, Family, Histogram, Sample, family_of

_NO_LABELS = ()


class ReactorTimes:
    """Filled in by the reactor itself: these are no facts."""

    def __init__(self) -> None:
        self._decisions = Histogram(c.DECISION)
        self._writes = Histogram(c.JOURNAL_WRITE)
        self._errors = Counter(c.JOURNAL_ERRORS)
        self._errors.add(_NO_LABELS, 0.0)
        self._writable = True

    def decided(self, seconds: float) -> None:
        """The engine took so long for a decision."""
        self._decisions.observe(_NO_LABELS, seconds)

    def written(self, seconds: float) -> None:
        """Facts were durable so long after their decision."""
        self._writes.observe(_NO_LABELS, seconds)

    def failed(self) -> None:
        """The journal cannot be written."""
        self._errors.add(_NO_LABELS)
        self._writable = False

    def healed(self) -> None:
        """The journal can be written again."""
        self._writable = True

    def families(self) -> Iterator[Family]:
        """All of it."""
        for kept in (self._decisions, self._writes, self._errors):
            yield family_of(kept)
        yield c.JOURNAL_WRITABLE, [Sample((), float(self._writable))]
