"""The size of the journal over a day, and the time of a recovery."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from pathlib import Path

from benchmarks.mesh import (
    amounts,
    finished,
    gone,
    opening,
    reported,
    submitted,
)
from benchmarks.rows import Row, at_most, note, timed_ms
from schedulemesh.config.settings import JournalSettings
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.sql import SqlJournal

_NEED = amounts(cpu=1, memory=1_000, gpu=0.5)
_DAY_S = 86_400


class _Clocked(Reactor):
    """A reactor with a manual clock."""

    at = 0.0
    facts = 0

    def now(self) -> float:
        return self.at

    async def step(self, stimulus, blobs=None):
        done = await super().step(stimulus, blobs)
        self.facts += len(done.facts)
        return done


def recovery(submissions: int = _DAY_S, facts: int = 100_000, in_flight: int = 32) -> list[Row]:
    """A day of one submission per second in compressed time, and recoveries."""
    with tempfile.TemporaryDirectory() as folder:
        day = asyncio.run(_day(Path(folder) / "day.sqlite", submissions, in_flight))
        recover = _recovery_ms(Path(folder) / "day.sqlite") / 1e3
        asyncio.run(_grow(Path(folder) / "long.sqlite", facts, in_flight))
        long_recovery = _recovery_ms(Path(folder) / "long.sqlite") / 1e3
    what = f"journal of {submissions:,} submissions, one a second, each started and completed: "
    return [
        at_most(f"{what}maximum size of file and log", day / 1e6, 200, " MB"),
        note(f"{what}recovery afterwards", f"{recover:.2f} s"),
        at_most(
            f"recovery of a journal with {facts:,} facts and no snapshot", long_recovery, 5, " s"
        ),
    ]


async def _day(path: Path, submissions: int, in_flight: int) -> int:
    """The maximum size of file and write-ahead log in bytes."""
    reactor = await _Clocked.recover(SqlJournal(path))
    for stimulus in opening(20):
        await reactor.step(stimulus)
    largest = 0
    for first in range(0, submissions, 600):
        numbers = iter(range(first, min(first + 600, submissions)))
        await asyncio.gather(*(_run_tasks(reactor, numbers) for _ in range(in_flight)))
        await reactor.step(s.ClockTicked())
        largest = max(largest, _size(path))
    await reactor.close(destroy=False)
    return largest


async def _run_tasks(reactor: _Clocked, numbers) -> None:
    """Submit one task per second with arguments of its own; each starts, completes and is gone."""
    for number in numbers:
        reactor.at = float(number)
        arguments, code = f"arguments {number}".encode() * 5, b"class" * 500
        step = await reactor.step(
            submitted(number, _NEED, 5.0, 60.0), {f"key {number}": arguments, "class": code}
        )
        report = reported(reactor.engine, step)
        await reactor.step(report)
        await reactor.step(finished(number))
        await reactor.step(gone(number, report.incarnation))


async def _grow(path: Path, facts: int, in_flight: int) -> None:
    """A journal with this number of facts and no snapshot."""
    settings = JournalSettings(snapshot_facts=10**9, snapshot_bytes=10**12)
    reactor = await _Clocked.recover(SqlJournal(path), settings=settings)
    for stimulus in opening(20):
        await reactor.step(stimulus)
    numbers = itertools.count()
    while reactor.facts < facts:
        some = iter(list(itertools.islice(numbers, max(1, min(200, facts // 10)))))
        await asyncio.gather(*(_run_tasks(reactor, some) for _ in range(in_flight)))
    await reactor.close(destroy=False)


def _recovery_ms(path: Path) -> float:
    """The time from opening the file to the complete state, in milliseconds."""

    def recover() -> None:
        journal = SqlJournal(path)
        journal.begin()
        Engine(journal.load().fold())
        journal.close()

    return statistics.median(timed_ms(recover) for _ in range(3))


def _size(path: Path) -> int:
    files = (path.with_name(path.name + suffix) for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
