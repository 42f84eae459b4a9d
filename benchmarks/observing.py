"""What metrics cost the decisions, and what metrics and history together cost them.

The sides are reactors of one process, each with a journal in SQLite. They take turns, and each ratio is that
of a round to the round without metrics and history beside it. Decisions per second depend on what else runs
on the machine; the processor time of a pair of decisions less. What the history writes after a round, while
nothing is decided, is counted apart: it is behind while the supervisor is busy.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.mesh import amounts, finished, gone, opening, reported, submitted
from benchmarks.rows import Row, at_most, note
from schedulemesh.config.settings import HistorySettings
from schedulemesh.metrics.reactor_times import ReactorTimes
from schedulemesh.metrics.recorder import MetricsRecorder
from schedulemesh.runtime.history.recorder import HistoryRecorder, history_of
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.sql import SqlJournal

_NEED = amounts(cpu=4, memory=16_000, gpu=1)
#: Tasks at once.
_IN_FLIGHT = 64
#: Seconds that the history has to write what a round left.
_PATIENCE_S = 120.0
#: Of the supervisor's process, in which full garbage collections are rare.
_THRESHOLDS = (10_000, 20, 50)


class _Untimed(ReactorTimes):
    """Measures nothing."""

    def decided(self, seconds: float) -> None:
        """See ReactorTimes."""

    def written(self, seconds: float) -> None:
        """See ReactorTimes."""


class _Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one side took for a round."""

    #: Decisions, in seconds.
    wall_s: float
    #: Processor time of the thread that decides, and of the whole process.
    thread_s: float
    process_s: float
    #: Processor time after the round, until the history had written it.
    after_s: float


class _Side:
    """A reactor, with or without what observes it."""

    def __init__(self, reactor: Reactor, history: HistoryRecorder | None) -> None:
        self.reactor, self._history = reactor, history

    @classmethod
    async def opened(cls, path: Path, running: int, *, metrics: bool, history: bool) -> _Side:
        journal = SqlJournal(path)
        reactor = await Reactor.recover(journal)
        if metrics:
            reactor.observers.add(MetricsRecorder(reactor.state, reactor.now))
        else:
            reactor.times = _Untimed()
        behind = history_of(journal, reactor, HistorySettings(enabled=history))
        side = cls(reactor, behind)
        for stimulus in opening(running // 4 + 100):
            await reactor.step(stimulus)
        for first in range(0, running, 500):
            batch = range(-first - 1, -min(first + 500, running) - 1, -1)
            steps = await reactor.steps([_submission(number) for number in batch], {})
            await reactor.steps([reported(reactor.engine, step) for step in steps], {})
        if behind is not None:
            behind.start(Loops())
            await side._caught_up()
        return side

    async def round(self, numbers: Iterator[int]) -> _Round:
        """Run the agents of these numbers from start to end."""
        began = _clocks()
        await asyncio.gather(*(self._lives(numbers) for _ in range(_IN_FLIGHT)))
        ended = _clocks()
        await self._caught_up()
        wall_s, thread_s, process_s = (b - a for a, b in zip(began, ended, strict=True))
        after_s = _clocks()[2] - ended[2]
        return _Round(wall_s=wall_s, thread_s=thread_s, process_s=process_s, after_s=after_s)

    async def _lives(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            step = await self.reactor.step(_submission(number), {"class": b"class"})
            report = reported(self.reactor.engine, step)
            await self.reactor.step(report)
            await self.reactor.step(finished(number))
            await self.reactor.step(gone(number, report.incarnation))

    async def _caught_up(self) -> None:
        if self._history is not None and await self._history.caught_up(_PATIENCE_S):
            raise AssertionError("the history did not catch up")


def observing(
    running: int = 2_000, slices: int = 80, pairs: int = 500, rounds: int = 24, long: int = 4_000
) -> list[Row]:
    """The ratios of each side to the one without metrics and history, and the processor time of a pair.

    ``slices`` of so many ``pairs`` compare metrics; ``rounds`` of ``long`` pairs are needed for the history,
    which writes some times a second.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(_observing(Path(folder), running, slices, pairs, rounds, long))
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def _observing(
    folder: Path, running: int, slices: int, pairs: int, rounds: int, long: int
) -> list[Row]:
    nothing = await _Side.opened(folder / "nothing.sqlite", running, metrics=False, history=False)
    metrics = await _Side.opened(folder / "metrics.sqlite", running, metrics=True, history=False)
    both = await _Side.opened(folder / "both.sqlite", running, metrics=True, history=True)
    gc.collect()
    gc.freeze()
    numbers = itertools.count()
    of_metrics = await _alternately(nothing, metrics, numbers, slices, pairs)
    of_both = await _alternately(nothing, both, numbers, rounds, long)
    for side in (nothing, metrics, both):
        await side.reactor.close(destroy=False)
    name = "metrics and history"
    slower = [1.0 - one.wall_s / other.wall_s for one, other in of_both]
    return [
        *_compared("metrics", of_metrics, pairs),
        at_most(
            f"{name}: fewer decisions per second, submit + complete through the SQLite journal",
            statistics.median(slower) * 100,
            5.0,
            " %",
            _sure(slower),
        ),
        *_compared(name, of_both, long),
    ]


async def _alternately(
    nothing: _Side, observed: _Side, numbers: Iterator[int], rounds: int, pairs: int
) -> list[tuple[_Round, _Round]]:
    """Rounds of both sides beside each other; they take turns to be first, and the first one warms up."""
    found = []
    for number in range(rounds + 1):
        done = {}
        for side in (nothing, observed) if number % 2 else (observed, nothing):
            done[side] = await side.round(itertools.islice(numbers, pairs))
        if number:
            found.append((done[nothing], done[observed]))
    return found


def _compared(name: str, found: Sequence[tuple[_Round, _Round]], pairs: int) -> Iterator[Row]:
    slower = [1.0 - one.wall_s / other.wall_s for one, other in found]
    thread = [other.thread_s / one.thread_s - 1.0 for one, other in found]
    process = [other.process_s / one.process_s - 1.0 for one, other in found]
    yield note(f"{name}: fewer decisions per second", _percent(slower))
    yield note(f"{name}: more processor time of the thread that decides", _percent(thread))
    yield note(f"{name}: more processor time of the process meanwhile", _percent(process))
    without, observed = zip(*found, strict=True)
    yield note(f"{name}: processor time of a pair", _times(observed, pairs))
    yield note("the same without", _times(without, pairs))


def _times(rounds: Sequence[_Round], pairs: int) -> str:
    thread, process, after = (
        statistics.median(values) / pairs * 1e6
        for values in (
            [each.thread_s for each in rounds],
            [each.process_s for each in rounds],
            [each.after_s for each in rounds],
        )
    )
    return f"{thread:.0f} µs that thread, {process:.0f} µs all, {after:.0f} µs afterwards"


def _percent(values: Sequence[float]) -> str:
    return f"{statistics.median(values) * 100:.1f} % ({_sure(values)})"


def _sure(values: Sequence[float]) -> str:
    """Between which values the median of more rounds would be, with a probability of 95 %."""
    ordered, away = sorted(values), 0.98 * len(values) ** 0.5
    low = ordered[max(0, math.floor(len(values) / 2 - away))]
    high = ordered[min(len(values) - 1, math.ceil(len(values) / 2 + away))]
    return f"{low * 100:.1f} to {high * 100:.1f}, {len(values)} rounds"


def _submission(number: int):
    return submitted(number, _NEED, 5.0, 60.0)


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()
