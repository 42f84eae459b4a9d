"""Limits how much of the processor a background thread takes from the thread that decides."""

from __future__ import annotations

import time
from collections.abc import Callable

#: The part of the time for which the thread works while the rest of the process is busy, and else.
_SHARE_BUSY, _SHARE_IDLE = 0.03, 0.5
#: The part of what one thread gets of a core, above which the rest of the process counts as busy.
_BUSY = 0.25
#: Seconds between two looks at whether it is busy.
_LOOK_S = 0.02
#: The longest rest, in seconds, for time in which the work could not go on: queries wait for the thread.
_REST_S = 0.5


#: Seconds of time, of processor time of the process, and of that of this thread.
Times = tuple[float, float, float]


def _now() -> Times:
    return time.monotonic(), time.process_time(), time.thread_time()


def _between(first: Times, second: Times) -> Times:
    return second[0] - first[0], second[1] - first[1], second[2] - first[2]


class Pace:
    """Says how long a thread rests after some work. Call both methods in that thread.

    Where processors are short, or the rest of the process has the interpreter, work takes longer than its
    processor time, and the others get less by the same factor. So the rest is longer, too, within limits.
    """

    def __init__(self, now: Callable[[], Times] = _now) -> None:
        self._now = now
        self._began = self._looked = now()
        self._busy = False

    def begin(self) -> None:
        """Work begins."""
        self._began = self._now()

    def rest_s(self) -> float:
        """Work has ended: the seconds to rest now."""
        now = self._now()
        worked_s, _, own_s = _between(self._began, now)
        wall_s, process_s, thread_s = _between(self._looked, now)
        if wall_s > _LOOK_S:
            own_share = min(1.0, own_s / worked_s) if worked_s > 0.0 else 1.0
            self._busy = process_s - thread_s > _BUSY * own_share * wall_s
            self._looked = now
        share = _SHARE_BUSY if self._busy else _SHARE_IDLE
        return max(own_s, min(worked_s, _REST_S * share)) * (1.0 - share) / share
