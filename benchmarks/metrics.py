"""What metrics cost: writing them while decisions are made, and reporting them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from benchmarks.mesh import amounts, finished, gone, opening, reported, submitted
from benchmarks.rows import Row, at_most, note, spread
from schedulemesh.core.agent.metrics_sender import MetricsSender
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.metrics import gauges
from schedulemesh.metrics.catalogue import HEARTBEAT
from schedulemesh.metrics.exposition import written
from schedulemesh.metrics.recorder import MetricsRecorder
from schedulemesh.metrics.values import Family, Sample
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.sql import SqlJournal

NEED = amounts(cpu=1)


def metrics(
    running: int = 10_000, pools: int = 1_000, reports: int = 3_000, decisions: int = 1_500
) -> list[Row]:
    """The marks of metrics; what recording them costs is measured by ``observing``."""
    return [
        _reporting(reports),
        *asyncio.run(_scraping(pools, running, decisions)),
    ]


def _reporting(reports: int) -> Row:
    """``report_metrics`` in the caller: the metrics of a training step."""
    sender = MetricsSender("agent", 1, lambda _data: None)  # type: ignore[arg-type,return-value]
    sender._wait = lambda _ref: None  # noqa: SLF001  # nothing is sent
    values = {"step": 1, "loss": 0.25, "progress": 0.5, "stage": "train"}
    taken = []
    for step in range(reports):
        values["step"] = step
        began = time.perf_counter()
        sender.report(values, 1.0, at_once=False)
        taken.append((time.perf_counter() - began) * 1e6)
    return at_most("report_metrics in the caller, four values", statistics.median(taken), 20, " µs")


async def _scraping(pools: int, agents: int, decisions: int) -> list[Row]:
    """The 99th percentile of the time of decisions, with scrapes in progress all the time and without, in
    turn.
    """
    with tempfile.TemporaryDirectory() as folder:
        reactor = await Reactor.recover(SqlJournal(Path(folder) / "journal.sqlite"))
        recorder = MetricsRecorder(reactor.state, reactor.now)
        reactor.observers.add(recorder)
        await _fill(reactor, pools, agents)
        gc.collect()
        gc.freeze()
        lives = _lives(reactor, itertools.count(agents), pools)
        took: list[float] = []
        rounds = []
        for _ in range(9):
            plain = [await anext(lives) for _ in range(decisions)]
            scraping = asyncio.ensure_future(_scrape_for_ever(reactor, recorder, took))
            scraped = [await anext(lives) for _ in range(decisions)]
            while not took:
                scraped.append(await anext(lives))
            scraping.cancel()
            rounds.append((_p99_ms(plain), _p99_ms(scraped)))
        size = len(await written(_families(reactor.engine, recorder)))
        await reactor.close(destroy=False)
    added = [during - before for before, during in rounds]
    without = statistics.median(before for before, _ in rounds)
    detail = f"{min(added):.3g}-{max(added):.3g} in {len(added)} rounds, {without:.3g} ms without"
    return [
        at_most(
            f"scrapes without pause, {pools:,} pools, {agents:,} agents: added to the p99 of decisions",
            statistics.median(added),
            10,
            " ms",
            detail,
        ),
        note("one such scrape", f"{spread(took)}, {size / 1e6:.3g} MB"),
    ]


def _p99_ms(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] * 1e3


async def _fill(reactor: Reactor, pools: int, agents: int) -> None:
    quota = amounts(cpu=10_000)
    await reactor.step(next(opening(1_000)))
    for number in range(pools):
        await reactor.step(s.PoolRequested(spec=PoolSpec(name=f"pool-{number}", resources=quota)))
    for first in range(0, agents, 500):
        batch = range(first, min(first + 500, agents))
        steps = await reactor.steps([_submission(n, pools) for n in batch], {})
        await reactor.steps([reported(reactor.engine, step) for step in steps], {})


async def _lives(reactor: Reactor, numbers: Iterator[int], pools: int) -> AsyncIterator[float]:
    """The time of each decision in the lives of agents, one after the other, in seconds."""
    for number in numbers:
        began = time.perf_counter()
        step = await reactor.step(_submission(number, pools))
        yield time.perf_counter() - began
        report = reported(reactor.engine, step)
        for stimulus in (report, finished(number), gone(number, report.incarnation)):
            began = time.perf_counter()
            await reactor.step(stimulus)
            yield time.perf_counter() - began


def _submission(number: int, pools: int) -> s.TaskSubmitted:
    stimulus = submitted(number, NEED, 1.0)
    pool = f"pool-{number % pools}"
    replace = msgspec.structs.replace
    return replace(
        stimulus,
        agent=replace(stimulus.agent, pool_name=pool),
        task=replace(stimulus.task, pool_name=pool),
    )


async def _scrape_for_ever(reactor: Reactor, recorder: MetricsRecorder, took: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await written(_families(reactor.engine, recorder))
        took.append((time.perf_counter() - began) * 1e3)


def _families(engine: Engine, recorder: MetricsRecorder) -> Iterator[Family]:
    state = engine.state
    yield from gauges.families(state)
    yield from recorder.families()
    names = [(agent.spec.pool_name, name) for name, agent in state.agents.items()]
    yield HEARTBEAT, (Sample(labels, 12.5) for labels in names)
