"""Waits for a scheduler that restarts, over every way to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from schedulemesh.errors import SchedulerUnavailableError

#: Seconds between two attempts, and for which nobody need answer.
_AGAIN_S, _PATIENCE_S = 0.5, 60.0

Answer = TypeVar("Answer")


def until_answered(ask: Callable[[], Answer]) -> Answer:
    """The answer, once there is one. What is asked must have the same effect when it is asked twice. Raises
    SchedulerUnavailableError where nobody has answered for a minute.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        began = time.monotonic()
        try:
            return ask()
        except SchedulerUnavailableError:
            failed = time.monotonic()
            if failed - began > _PATIENCE_S:
                # Somebody was there, and waited with us.
                until = failed + _PATIENCE_S
            if failed > until:
                raise
            time.sleep(_AGAIN_S)
