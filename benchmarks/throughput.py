"""Submissions and completions per second: the engine alone, and with the journal."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.mesh import (
    POOLS,
    amounts,
    finish,
    finished,
    gone,
    mesh,
    opening,
    reported,
    start,
    submitted,
)
from benchmarks.rows import Row, at_least, note, timed_ms
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.transaction import Step
from schedulemesh.store.sql import SqlJournal
from schedulemesh.store.writer import GroupWriter

NEEDS = (
    amounts(cpu=1, memory=1_000),
    amounts(cpu=2, memory=1_000, gpu=0.5),
    amounts(cpu=4, memory=8_000, gpu=0.25),
)


def engine_alone(
    nodes: int = 1_000, running: int = 10_000, pairs: int = 5_000, rounds: int = 9
) -> list[Row]:
    """A pair is the whole life of a task: submitted, reported, finished, gone. The next task to end is the
    oldest, or a random one: then the freed resources are scattered over nodes and memory.
    """
    engine = mesh(nodes)
    rng = random.Random(5)
    running_agents = [
        (number, start(engine, _submission(number), 1.0)) for number in range(running)
    ]
    numbers = itertools.count(running)

    def run(picks: Sequence[int]) -> float:
        """Pairs per second."""
        began = time.perf_counter()
        for pick in picks:
            number, (ended, incarnation) = next(numbers), running_agents[pick]
            running_agents[pick] = (number, start(engine, _submission(number), 1.0))
            finish(engine, ended, incarnation, 1.0)
        return len(picks) / (time.perf_counter() - began)

    in_turn = itertools.cycle(range(running))
    oldest = [run([next(in_turn) for _ in range(pairs)]) for _ in range(rounds)]
    scattered = [run([rng.randrange(running) for _ in range(pairs)]) for _ in range(rounds)]
    if len(engine.state.agents) != running:
        raise AssertionError(f"{len(engine.state.agents)} agents run, not {running}")
    what = (
        f"engine alone: submit + complete, {POOLS} pools, {nodes:,} nodes, {running:,} running, "
        "one core, "
    )
    return [
        _rate(f"{what}the oldest task ends", oldest, 20_000),
        _rate(f"{what}a random task ends", scattered, 20_000),
    ]


def through_journal(
    nodes: int = 1_000,
    running: int = 10_000,
    pairs: int = 6_000,
    rounds: int = 5,
    in_flight: int = 64,
) -> list[Row]:
    """The same with an SQLite journal and group commit: every step is on disk before the next."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        sync = statistics.median(timed_ms(lambda: _sync(path / "probe")) for _ in range(50))
        rates, size = asyncio.run(
            _journalled(path / "journal.sqlite", nodes, running, pairs, rounds, in_flight)
        )
    return [
        _rate(
            "the same through the SQLite journal, synchronous=FULL, group commit, "
            f"{in_flight} in flight",
            rates,
            6_000,
        ),
        note("journal on disk, per pair", f"{size / (pairs * rounds):,.0f} B"),
        note("one write of 4 KiB and fsync in the same folder", f"{sync:.2g} ms"),
    ]


async def _journalled(
    path: Path, nodes: int, running: int, pairs: int, rounds: int, in_flight: int
) -> tuple[list[float], int]:
    """Pairs per second in each round, and the bytes written by all of them."""
    journal = SqlJournal(path)
    journal.begin()
    runner = AgentRunner(Engine(), GroupWriter(journal, journal.load()))
    await runner.open(nodes)
    await _at_once(in_flight, runner.run(range(running), ends=False))
    before = _size(path)
    rates = []
    for i in range(rounds):
        numbers = range(running + i * pairs, running + (i + 1) * pairs)
        began = time.perf_counter()
        await _at_once(in_flight, runner.run(numbers, ends=True))
        rates.append(pairs / (time.perf_counter() - began))
    size = _size(path) - before
    folded = journal.load().fold()
    if folded.agents.keys() != runner.engine.state.agents.keys():
        raise AssertionError("the journal does not fold to the living state")
    await runner.close()
    journal.close()
    return rates, size


class AgentRunner:
    """Runs agents from start to end, each step durable before the next."""

    def __init__(self, engine: Engine, writer: GroupWriter) -> None:
        self.engine = engine
        self._writer = writer

    async def open(self, nodes: int) -> None:
        """Create nodes and pools."""
        for stimulus in opening(nodes):
            await self._step(stimulus)

    def run(self, numbers: range, *, ends: bool) -> Iterator:
        """Coroutines that start the agents of these numbers and, with ``ends``, end them."""
        return (self._run_one(number, ends=ends) for number in numbers)

    async def close(self) -> None:
        """Close the writer."""
        await self._writer.close()

    async def _run_one(self, number: int, *, ends: bool) -> None:
        step = await self._step(_submission(number))
        report = reported(self.engine, step)
        await self._step(report)
        if ends:
            await self._step(finished(number))
            await self._step(gone(number, report.incarnation))

    async def _step(self, stimulus: s.AnyStimulus) -> Step:
        step = self.engine.handle(stimulus, 1.0)
        await self._writer.append(step.facts)
        return step


async def _at_once(workers: int, work: Iterator) -> None:
    """Await all of the work, with a limit on concurrency."""

    async def worker() -> None:
        for each in work:
            await each

    await asyncio.gather(*(worker() for _ in range(workers)))


def _rate(what: str, rates: Sequence[float], target: float) -> Row:
    detail = f"{min(rates):,.0f}-{max(rates):,.0f} in {len(rates)} rounds"
    return at_least(what, statistics.median(rates), target, " pairs/s", detail)


def _submission(number: int) -> s.TaskSubmitted:
    return submitted(number, NEEDS[number % 3], float(number % 7), 100.0)


def _size(path: Path) -> int:
    """The size of the journal in bytes after a checkpoint of its write-ahead log."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


def _sync(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
