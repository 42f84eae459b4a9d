"""The supervisor's clock: seconds since 1970 that are not affected by changes of the system clock.

The system clock may be changed at any moment. Durations (how long a task has run, how long an answer is
remembered) must not change with it, neither while a supervisor runs nor across its restarts. So the system
clock is used only as the initial value; from then on the time advances with the time since the machine's
boot, also after a restart of the supervisor during the same boot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

#: Seconds by which the system clock may differ before a warning is logged.
_JUMP_S = 5.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ClockMark(msgspec.Struct, frozen=True, kw_only=True):
    """A time of the clock, from which a restarted supervisor continues."""

    #: Identifies the boot of the machine from which ``ticks`` are counted; empty: unknown.
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
    """Seconds since the boot, including time during which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """A clock that is not affected by changes of the system clock; see the module."""

    def __init__(
        self,
        system: Callable[[], float] = time.time,
        ticks: Callable[[], float] = _ticks,
        boot_id: Callable[[], str] = _boot_id,
    ) -> None:
        self._system, self._ticks = system, ticks
        self._boot_id = boot_id()
        #: The difference between the time and ``ticks``.
        self._offset = system() - ticks()
        #: The difference between the system clock and this one at the last warning.
        self._ahead = 0.0

    def now(self) -> float:
        """Seconds since 1970; never decreases."""
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
        """The current time as a mark."""
        ticks = self._ticks()
        return ClockMark(boot_id=self._boot_id, ticks=ticks, at=self._offset + ticks)

    def resume(self, mark: ClockMark | None, newest: float) -> None:
        """Continue from the mark of a previous supervisor and from the newest time in its state.

        During the same boot this is exact. After a reboot only the system clock can tell how much time has
        passed; if it is behind the newest time, the clock continues from the newest time.
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
