"""The progress that a process reports, and when its task ends if it goes on like that."""

from __future__ import annotations

import math
from typing import NamedTuple

#: No rate follows from less progress than this.
_LEAST = 1e-6
#: Nor from less time, in seconds: a process that has just begun, or been restored, reports values in quick
#: succession that say nothing about its rate.
_LEAST_S = 1.0


class Progress(NamedTuple):
    """The first and the newest progress (0 to 1) of a process, each with its time in seconds since 1970."""

    began: float
    first: float
    at: float
    newest: float
    #: Whether it has fallen, so that an end that was measured before is no longer true.
    fell: bool = False

    @property
    def ends_at(self) -> float | None:
        """When it is 1 if it goes on as since the first report; None: not known.

        The first report counts as the beginning, because a task that was restored does not begin at 0.
        """
        gained, took = self.newest - self.first, self.at - self.began
        if gained < _LEAST or took < _LEAST_S:
            return None
        return self.at + (1.0 - self.newest) * took / gained


def advanced(previous: Progress | None, reported: object, now: float) -> Progress | None:
    """The progress after a report; one that says nothing changes nothing, one that is lower begins anew."""
    done = number(reported)
    if done is None or not 0.0 <= done <= 1.0:
        return previous
    if previous is None or done < previous.newest:
        return Progress(now, done, now, done, fell=previous is not None)
    return previous._replace(at=now, newest=done)


def number(value: object) -> float | None:
    """A finite number; None: it is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)
