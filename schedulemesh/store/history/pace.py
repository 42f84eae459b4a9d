"""Limits how much of the processor a background thread takes from the thread that decides."""

from __future__ import annotations

import time

#: The share of one core that the thread takes while the rest of the process is busy, and else.
_SHARE_BUSY, _SHARE_IDLE = 0.03, 0.5
#: The share of one core above which the rest of the process counts as busy.
_BUSY = 0.25


class Pace:
    """Says how long a thread rests after some work. Call both methods in that thread."""

    def __init__(self) -> None:
        self._began = time.thread_time()
        self._wall, self._process, self._own = self._now()
        self._busy = True

    def begin(self) -> None:
        """Work begins."""
        self._began = time.thread_time()

    def rest_s(self) -> float:
        """Work has ended: the seconds to rest now."""
        worked = time.thread_time() - self._began
        wall, process, own = self._now()
        if wall - self._wall > 0.02:
            others = (process - self._process) - (own - self._own)
            self._busy = others / (wall - self._wall) > _BUSY
            self._wall, self._process, self._own = wall, process, own
        share = _SHARE_BUSY if self._busy else _SHARE_IDLE
        return worked * (1.0 - share) / share

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), time.thread_time()
