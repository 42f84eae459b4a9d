"""The history: questions over a million tasks, and their size on disk."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import update

from benchmarks.mesh import amounts, opening, reported, submitted
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.config.settings import HistorySettings
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.messages.stimuli import ClockTicked, TaskSubmitted
from schedulemesh.runtime.history.recorder import history_of
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.history.database import write
from schedulemesh.store.history.fold import Fold
from schedulemesh.store.history.queries import Filters, History, Span
from schedulemesh.store.history.schema import progress
from schedulemesh.store.history.tables import FILES, history_engine, migrate
from schedulemesh.store.history.usage import Dimension
from schedulemesh.store.sql import SqlJournal

_NEED = amounts(cpu=4, memory=16_000, gpu=1)
_MONTH_S = 30 * 86_400.0
_POOLS, _OWNERS, _NODES = 20, 50, 100
_BEGIN = 1_700_000_000.0


def history(
    tasks: int = 1_000_000, questions: int = 9, running: int = 700, recoveries: int = 15
) -> list[Row]:
    """A month of finished tasks. What writing them costs the decisions is measured by ``observing``."""
    with tempfile.TemporaryDirectory() as folder:
        rows = _month(Path(folder), tasks, questions)
        return [*rows, *asyncio.run(_recovered(Path(folder), running, recoveries))]


def _month(folder: Path, tasks: int, questions: int) -> list[Row]:
    journal = SqlJournal(folder / "month.sqlite")
    address = journal.address
    journal.close()
    with history_engine(address).connect() as connection:
        with connection.begin():
            migrate(connection)
        _fill(connection, tasks)
        with connection.begin():
            asked = History(connection, 1, _BEGIN + _MONTH_S)
            usage = {
                by: [
                    timed_ms(lambda by=by: asked.usage(by, _BEGIN, _BEGIN + _MONTH_S, None))
                    for _ in range(questions)
                ]
                for by in Dimension
            }
            one = [
                timed_ms(lambda: asked.attempts(Filters(task_id=_id(tasks // 2)), 100, Span()))
                for _ in range(questions)
            ]
            page = [timed_ms(lambda: asked.events(tasks, 1000, None, ())) for _ in range(questions)]
    size = sum((folder / f"month.sqlite{suffix}").stat().st_size for suffix in _files(folder))
    what = f"history of {tasks:,} finished tasks, {_POOLS} pools, {_OWNERS} owners, a month: "
    return [
        *(
            at_most(
                f"{what}usage by {by.name.lower()}",
                statistics.median(times) / 1e3,
                1.0,
                " s",
            )
            for by, times in usage.items()
        ),
        note(f"{what}one task", spread(one)),
        note(f"{what}1,000 events", spread(page)),
        at_most(f"{what}on disk", size / 1e6, 600.0, " MB"),
    ]


async def _recovered(folder: Path, running: int, rounds: int) -> list[Row]:
    """The time of recoveries beside this history, and beside none, in turn: until the first decision is
    durable.
    """
    month, empty = folder / "month.sqlite", folder / "empty.sqlite"
    reactor = await Reactor.recover(SqlJournal(month))
    for stimulus in opening(_NODES):
        await reactor.step(stimulus)
    steps = await reactor.steps([submitted(number, _NEED, 1.0) for number in range(running)], {})
    await reactor.steps([reported(reactor.engine, step) for step in steps], {})
    last = reactor.last
    await reactor.close(destroy=False)
    shutil.copy(month, empty)
    address = SqlJournal(month)
    with history_engine(address.address).begin() as connection:
        connection.execute(update(progress).values(upto=last))
    address.close()
    found = []
    for number in range(rounds + 1):
        both = {path: await _recovery_s(path) for path in _in_turn(number, month, empty)}
        if number:
            found.append((both[month], both[empty]))
    ratios = [beside / without for beside, without in found]
    what = (
        f"recovery with {running:,} running agents beside that history, relative to one beside none"
    )
    times = spread([1e3 * beside for beside, _ in found])
    return [at_most(what, statistics.median(ratios), 1.05, " ×", f"{times}, {rounds} pairs")]


def _in_turn(number: int, *paths: Path) -> tuple[Path, ...]:
    return paths if number % 2 else paths[::-1]


async def _recovery_s(path: Path) -> float:
    gc.collect()
    began = time.perf_counter()
    journal = SqlJournal(path)
    reactor = await Reactor.recover(journal)
    behind = history_of(journal, reactor, HistorySettings())
    if behind is None:
        raise AssertionError("a journal in a file has a history")
    behind.start(Loops())
    await reactor.step(ClockTicked())
    took = time.perf_counter() - began
    if await behind.caught_up(60.0):
        raise AssertionError("the history did not continue")
    await reactor.close(destroy=False)
    return took


def _files(folder: Path) -> Iterator[str]:
    return (suffix for suffix in FILES if (folder / f"month.sqlite{suffix}").exists())


def _fill(connection, tasks: int) -> None:
    """Write tasks that were queued, started, and ended, in the order of their facts."""
    fold, rng = Fold(), random.Random(3)
    for number in range(_NODES):
        fold.node(f"{number:056x}")
    for number in range(tasks):
        for fact in _life(number, tasks, rng):
            fold.add(fact)
        if number % 2_000 == 1_999 or number == tasks - 1:
            with connection.begin():
                write(connection, 1, fold, number)
            fold.saved()


def _life(number: int, tasks: int, rng: random.Random) -> Iterator[f.AnyFact]:
    """The facts of one task, which runs for half an hour on average."""
    at = _BEGIN + number * (_MONTH_S - 7200) / tasks
    name, pool = f"agent-{number:08}", f"pool-{rng.randrange(_POOLS)}"
    labels = {"team": f"team-{rng.randrange(20)}", "model": f"model-{rng.randrange(30)}"}
    agent = AgentSpec(name=name, pool_name=pool, resources=_NEED, labels=labels)
    task = TaskSpec(
        task_id=_id(number), pool_name=pool, owner=f"user-{rng.randrange(_OWNERS)}", labels=labels
    )
    submission = TaskSubmitted(agent=agent, task=task, queue=True, client="worker-1:12345")
    yield TaskQueued(submission=submission, at=at, number=number)
    at += rng.random() * 60
    yield f.AgentAdmitted(agent=agent, incarnation=number, at=at, task=task)
    at += 1.0
    node_id = f"{rng.randrange(_NODES):056x}"
    yield f.AgentStarted(agent_name=name, incarnation=number, at=at, node_id=node_id)
    at += rng.random() * 3600
    yield f.TaskEnded(task_id=task.task_id, at=at)
    yield f.AgentEnded(agent_name=name, incarnation=number, at=at, reason=EndReason.COMPLETED)


def _id(number: int) -> str:
    return f"experiment-7/train-{number:08}"
