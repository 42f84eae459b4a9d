"""Wraps a scheduling strategy so that its errors do not affect decisions.

A call that raises, or returns something other than documented, is logged, counted and treated as no opinion.
With a clock, calls are also timed: the third one that takes more than 10 ms disables the strategy. A call
that never returns cannot be stopped here; a watchdog thread sees it in ``running_call``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from numbers import Real
from typing import Protocol, TypeVar

from schedulemesh.plugins.scheduling import (
    ResourceDomain,
    SchedulingStrategyPlugin,
    TaskView,
    hooks_of,
)

logger = logging.getLogger(__name__)

#: Seconds above which a call is slow, and the number of slow calls that disables a strategy.
SLOW_S, SLOW_CALLS = 0.010, 3

Answer = TypeVar("Answer", float, bool)
OnDisabled = Callable[["Guarded"], None]


class CrashMarker(Protocol):
    """Records which strategy is being called, so that a restarted process knows which one ended this one."""

    def begin(self, name: str, hook: str) -> None:
        """Record that this hook of this strategy is being called."""

    def end(self) -> None:
        """Record that the call has returned."""


class Guarded:
    """A named strategy whose calls are guarded."""

    def __init__(
        self,
        name: str,
        plugin: SchedulingStrategyPlugin,
        clock: Callable[[], float] | None = None,
        on_disabled: OnDisabled | None = None,
        mark: CrashMarker | None = None,
    ) -> None:
        self.name = name
        self.hooks = hooks_of(plugin)
        self.calls = self.failures = self.slow = 0
        #: Why it is no longer called; empty: it is.
        self.disabled = ""
        #: The hook that is being called and the start of the call, on the guard's clock; None: none.
        self.running_call: tuple[str, float] | None = None
        self._plugin = plugin
        self._clock = clock
        self._on_disabled = on_disabled
        self._mark = mark

    def has(self, hook: str) -> bool:
        """Whether this hook is to be called."""
        return hook in self.hooks and not self.disabled

    def score(self, task: TaskView, resources: ResourceDomain) -> float | None:
        """See SchedulingStrategyPlugin; None: no opinion, or it failed."""
        return self._ask("score", _number, lambda: self._plugin.score(task, resources))

    def priority(self, task: TaskView) -> float | None:
        """See SchedulingStrategyPlugin; None: no opinion, or it failed."""
        return self._ask("priority", _number, lambda: self._plugin.priority(task))

    def preemption_policy(self, high: TaskView, low: TaskView) -> bool | None:
        """See SchedulingStrategyPlugin; None: no opinion, or it failed."""
        return self._ask(
            "preemption_policy", _truth, lambda: self._plugin.preemption_policy(high, low)
        )

    def disable(self, reason: str) -> None:
        """Stop calling the strategy, for this reason."""
        self.disabled = reason
        logger.error("scheduling strategy %s is disabled: %s", self.name, reason)
        if self._on_disabled is not None:
            self._on_disabled(self)

    def _ask(
        self, hook: str, check: Callable[[object], Answer], call: Callable[[], object]
    ) -> Answer | None:
        started = self._begin(hook)
        self.calls += 1
        try:
            answer = call()
            return None if answer is None else check(answer)
        except BaseException as error:  # logged  # whatever it raises, the decision continues
            self.failures += 1
            logger.warning(
                "scheduling strategy %s, %s: %s: %s; skipped for this decision",
                self.name,
                hook,
                type(error).__name__,
                error,
                exc_info=True,
            )
            return None
        finally:
            self._end(hook, started)

    def _begin(self, hook: str) -> float:
        if self._mark is not None:
            self._mark.begin(self.name, hook)
        if self._clock is None:
            return 0.0
        started = self._clock()
        self.running_call = (hook, started)
        return started

    def _end(self, hook: str, started: float) -> None:
        if self._mark is not None:
            self._mark.end()
        if self._clock is None:
            return
        self.running_call = None
        took = self._clock() - started
        if took <= SLOW_S:
            return
        self.slow += 1
        logger.warning(
            "scheduling strategy %s, %s took %.1f ms (the limit is %g ms)",
            self.name,
            hook,
            took * 1e3,
            SLOW_S * 1e3,
        )
        if self.slow >= SLOW_CALLS and not self.disabled:
            self.disable(f"{self.slow} calls took longer than {SLOW_S * 1e3:g} ms")


def _number(answer: object) -> float:
    answer = _plain(answer)
    if isinstance(answer, bool) or not isinstance(answer, Real):
        raise TypeError(f"answered {answer!r}; a finite number is expected")
    if not math.isfinite(answer):
        raise ValueError(f"answered {answer!r}; a finite number is expected")
    return float(answer)


def _truth(answer: object) -> bool:
    answer = _plain(answer)
    if not isinstance(answer, bool):
        raise TypeError(f"answered {answer!r}; True, False or None is expected")
    return answer


def _plain(answer: object) -> object:
    """Convert a scalar of NumPy or a similar library to the Python type."""
    item = getattr(answer, "item", None)
    return item() if getattr(answer, "ndim", None) == 0 and callable(item) else answer
