"""When the supervisor observes the cluster: then evictions are sought for queued tasks.

A history has the ticks that decided something. As long as a rehearsal decides the same, it needs no others.
Afterwards it ticks in between, too: at the interval, counted from the nearest tick of the history.
"""

from __future__ import annotations

from bisect import bisect_right


class Ticks:
    """The ticks of a rehearsal that decides otherwise than the history; ``recorded``: their times in it."""

    def __init__(self, recorded: list[float], begin: float, period_s: float) -> None:
        self._recorded, self._begin, self._period_s = recorded, begin, period_s

    def after(self, time: float) -> float:
        """The first tick after a time."""
        next_one = bisect_right(self._recorded, time)
        neighbours = self._recorded[max(0, next_one - 1) : next_one + 1] or [self._begin]
        anchor = min(neighbours, key=lambda one: abs(one - time))
        period = self._period_s
        at = anchor + ((time - anchor) // period + 1) * period
        if next_one < len(self._recorded) and at > self._recorded[next_one] - period / 2:
            return self._recorded[next_one]
        return at
