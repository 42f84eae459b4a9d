"""The supervisor's clock: seconds since 1970 that advance as time really passes.

The system clock may be set forward or back at any moment. Durations (how long a task has run, for how
long an answer is remembered) must not change by that, neither within a life of a supervisor nor from one
life to the next. So the time is the system clock's only where nothing better is known; from then on it
advances with the time since the machine's boot, also in the next life after the same boot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

#: Seconds by which the system clock may differ before the log says so.
_JUMP_S = 5.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ClockMark(msgspec.Struct, frozen=True, kw_only=True):
    """What a later life needs to go on from this clock."""

    #: Which boot of which machine ``ticks`` are counted from; empty: not known.
    boot_id: str
    #: Seconds since that boot at ``at``.
    ticks: float
    at: float


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _ticks() -> float:
    """Seconds since the boot, also those for which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """See the module."""

    def __init__(
        self,
        system: Callable[[], float] = time.time,
        ticks: Callable[[], float] = _ticks,
        boot_id: Callable[[], str] = _boot_id,
    ) -> None:
        self._system, self._ticks = system, ticks
        self._boot_id = boot_id()
        #: What makes ticks the time.
        self._offset = system() - ticks()
        #: By how much the system clock is ahead, as the log last said.
        self._ahead = 0.0

    def now(self) -> float:
        """Seconds since 1970; never going back."""
        now = self._offset + self._ticks()
        ahead = self._system() - now
        if abs(ahead - self._ahead) > _JUMP_S:
            logger.warning(
                "the system clock was set %s by %.0f s; durations are measured without that, and times "
                "are shown as if it had not been set until this machine boots again",
                "forward" if ahead > self._ahead else "back",
                abs(ahead - self._ahead),
            )
            self._ahead = ahead
        return now

    def mark(self) -> ClockMark:
        """Where the clock stands."""
        ticks = self._ticks()
        return ClockMark(boot_id=self._boot_id, ticks=ticks, at=self._offset + ticks)

    def resume(self, mark: ClockMark | None, newest: float) -> None:
        """Go on from a former life's mark and from the newest time in its books.

        After the same boot that is exact. After another one only the system clock knows how much time has
        passed, and it is not believed where it is behind.
        """
        ticks, earliest = self._ticks(), newest
        if mark is not None:
            earliest = max(newest, mark.at)
            if mark.boot_id and mark.boot_id == self._boot_id and ticks >= mark.ticks:
                self._offset = mark.at - mark.ticks
        behind = earliest - (self._offset + ticks)
        if behind > 0:
            self._offset += behind
        if behind > _JUMP_S:
            logger.warning(
                "the system clock is %.0f s behind the newest entry of the journal; time goes on from "
                "that entry",
                behind,
            )
        self._ahead = self._system() - (self._offset + ticks)
        if self._ahead > _JUMP_S:
            logger.warning(
                "the system clock was set forward by %.0f s since this scheduler began; durations are "
                "measured without that",
                self._ahead,
            )
