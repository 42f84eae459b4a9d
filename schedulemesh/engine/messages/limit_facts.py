"""Facts about tasks that reach their limits in time; see ``facts``. Their ends are evictions."""

from __future__ import annotations

from typing import Union

from schedulemesh.engine.messages.fact import Fact


class TimeLimitNear(Fact, tag="time_limit_near", frozen=True, kw_only=True):
    """The owner of a task is warned that it has run for nearly as long as it may."""

    task_id: str
    at: float
    #: When it is being ended, in seconds since 1970.
    limit_at: float


class TimeLimitChanged(Fact, tag="time_limit_changed", frozen=True, kw_only=True):
    """A task that runs, or waits in the queue, may run for so long from now on, and in later attempts."""

    task_id: str
    at: float
    #: Seconds from the start of an attempt; None: as its pool says.
    max_run_s: float | None = None
    #: The limit of the attempt that runs; None: it has none, or the task waits.
    of_attempt_s: float | None = None


class IdleLimitNear(Fact, tag="idle_limit_near", frozen=True, kw_only=True):
    """The owner of a task is warned that its GPUs have been idle for as long as they may."""

    task_id: str
    at: float
    #: Since when they are, in seconds since 1970.
    since: float
    #: When it is being ended if they stay so.
    limit_at: float


class IdleLimitCleared(Fact, tag="idle_limit_cleared", frozen=True, kw_only=True):
    """The GPUs of a task that was warned are used again, or nobody knows."""

    task_id: str
    at: float


AnyLimitFact = Union[TimeLimitNear, TimeLimitChanged, IdleLimitNear, IdleLimitCleared]
