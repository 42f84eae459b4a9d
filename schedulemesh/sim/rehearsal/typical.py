"""How long the actions of the runtime took in a history: medians, for what a rehearsal decides otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from schedulemesh.sim.timing import Timing
from schedulemesh.store.history.attempts import Attempt


class Victims:
    """The attempts that were evicted for others, by the agent that they were evicted for."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        self._released: dict[str, list[float]] = {}
        for attempt in attempts:
            if attempt.by_agent and attempt.released_at is not None:
                self._released.setdefault(attempt.by_agent, []).append(attempt.released_at)

    def ready_at(self, attempt: Attempt) -> float:
        """When the start of an attempt could begin: with its admission, or the end of its last victim."""
        admitted, started = attempt.admitted_at or 0.0, attempt.started_at or 0.0
        ends = self._released.get(attempt.agent_name, ())
        return max([admitted, *(end for end in ends if admitted < end <= started)])


class Typical(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that actions take."""

    start_s: float
    restore_s: float
    save_s: float
    #: From the end of a task until its resources are free.
    end_s: float


def typical(attempts: Iterable[Attempt], victims: Victims, timing: Timing) -> Typical:
    """The medians; where nothing of a kind happened, what ``timing`` says."""
    started = [one for one in attempts if one.started_at is not None]
    fresh = [one.started_at - victims.ready_at(one) for one in started if not one.restored]  # type: ignore[operator]
    restored = [one.started_at - victims.ready_at(one) for one in started if one.restored]  # type: ignore[operator]
    saves = [
        one.saved_at - one.evicted_at
        for one in started
        if one.saved_at is not None
        and one.evicted_at is not None
        and one.saved_at >= one.evicted_at
    ]
    ends = [
        one.released_at - one.ended_at
        for one in started
        if one.released_at is not None and one.ended_at is not None
    ]
    start_s = median(fresh) if fresh else timing.start_s
    return Typical(
        start_s=start_s,
        restore_s=max(0.0, median(restored) - start_s) if restored else timing.restore_s,
        save_s=median(saves) if saves else timing.save_s,
        end_s=max(0.0, median(ends)) if ends else timing.end_s,
    )
