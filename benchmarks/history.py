"""The history: questions over a million tasks, and their size on disk."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.mesh import amounts
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.store.history.database import write
from schedulemesh.store.history.fold import Fold
from schedulemesh.store.history.queries import Filters, History, Span
from schedulemesh.store.history.tables import FILES, history_engine, migrate
from schedulemesh.store.history.usage import Dimension
from schedulemesh.store.sql import SqlJournal

_NEED = amounts(cpu=4, memory=16_000, gpu=1)
_MONTH_S = 30 * 86_400.0
_POOLS, _OWNERS, _NODES = 20, 50, 100
_BEGIN = 1_700_000_000.0


def history(tasks: int = 1_000_000, questions: int = 9) -> list[Row]:
    """A month of finished tasks. What writing them costs the decisions is measured by ``observing``."""
    with tempfile.TemporaryDirectory() as folder:
        return _month(Path(folder), tasks, questions)


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
