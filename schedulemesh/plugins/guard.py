"""The guard around a scheduling strategy: whatever it does, the decision goes on.

A call that raises, or answers something else than documented, is logged, counted and worth no opinion.
With a clock, calls are timed, too: the third one above 10 ms disables the strategy. One that never
returns cannot be stopped from here; ``under_way`` tells a watchdog thread about it.
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

#: Seconds above which a call is slow, and how many slow calls disable.
SLOW_S, SLOW_CALLS = 0.010, 3

Answer = TypeVar("Answer", float, bool)
OnDisabled = Callable[["Guarded"], None]


class Mark(Protocol):
    """Where it is noted who is being asked, so that the next process knows who ended this one."""

    def begin(self, name: str, hook: str) -> None:
        """From now on this strategy is asked this hook."""

    def end(self) -> None:
        """Nobody is being asked any more."""


class Guarded:
    """A strategy with a name, behind its guard."""

    def __init__(
        self,
        name: str,
        plugin: SchedulingStrategyPlugin,
        clock: Callable[[], float] | None = None,
        on_disabled: OnDisabled | None = None,
        mark: Mark | None = None,
    ) -> None:
        self.name = name
        self.hooks = hooks_of(plugin)
        self.calls = self.failures = self.slow = 0
        #: Why it is not asked any more; empty: it is.
        self.disabled = ""
        #: The hook that is being asked and since when, on the guard's clock; None: none.
        self.under_way: tuple[str, float] | None = None
        self._plugin = plugin
        self._clock = clock
        self._on_disabled = on_disabled
        self._mark = mark

    def has(self, hook: str) -> bool:
        """Whether it is to be asked this hook."""
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
        """Ask it no more."""
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
        except BaseException as error:  # logged  # whatever it raises, the decision goes on
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
        self.under_way = (hook, started)
        return started

    def _end(self, hook: str, started: float) -> None:
        if self._mark is not None:
            self._mark.end()
        if self._clock is None:
            return
        self.under_way = None
        took = self._clock() - started
        if took <= SLOW_S:
            return
        self.slow += 1
        logger.warning(
            "scheduling strategy %s, %s took %.1f ms (up to %g ms is fine)",
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
    """A scalar of NumPy, or of a library that is like it, as Python's own."""
    item = getattr(answer, "item", None)
    return item() if getattr(answer, "ndim", None) == 0 and callable(item) else answer
