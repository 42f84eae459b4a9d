"""Costs that must not grow faster than what they look at: their time, and its ratio per doubling."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks.groups import SimulatedEngine
from benchmarks.mesh import amounts
from benchmarks.rows import Row, at_most, timed_ms
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.query import PreemptionQuery

#: Linear growth is 2 per doubling; the rest is for the noise of a shared machine.
RATIO = 2.5


def growth() -> list[Row]:
    """Each cost at three sizes."""
    return [
        *_rows(
            "a dry run that makes a group among {:,} idle ones of another shape", _one_idle, 1_000
        ),
        *_rows("the same where several idle ones must leave a node for it", _several_idle, 1_000),
        *_rows(
            "evaluate anew where each of {:,} tasks is a class of its own",
            _first_evaluation,
            20_000,
        ),
        *_rows("the same again for an incoming task like the last", _repeated_evaluation, 20_000),
    ]


def _rows(what: str, measure: Callable[[int], Callable[[], float]], least: int) -> list[Row]:
    sizes = (least, 2 * least, 4 * least)
    measures = [measure(size) for size in sizes]
    times = [[one() for one in measures] for _ in range(15)]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    ratio = (medians[-1] / medians[0]) ** 0.5
    shown = ", ".join(f"{t:.3g} ms" for t in medians)
    return [at_most(what.format(sizes[-1]) + ", per doubling", ratio, RATIO, " ×", shown)]


def _idle_groups(number: int) -> SimulatedEngine:
    """A full cluster on which so many groups stand idle, ten on each node."""
    share = amounts(cpu=6.4)
    simulated = SimulatedEngine(number // 10, GroupsSpec(max_dynamic=2 * number))
    for task in [simulated.start(1.0, share) for _ in range(number)]:
        simulated.end(task)
    return simulated


def _one_idle(number: int) -> Callable[[], float]:
    simulated = _idle_groups(number)
    return lambda: simulated.search(amounts(cpu=6), evicting=False)


def _several_idle(number: int) -> Callable[[], float]:
    simulated = _idle_groups(number)
    return lambda: simulated.search(amounts(cpu=60), evicting=False)


def _first_evaluation(number: int) -> Callable[[], float]:
    engine = _classes(number)
    numbers = iter(range(10**6))
    return lambda: _evaluate(engine, float(number) + 10.0 + next(numbers) / 100.0)


def _repeated_evaluation(number: int) -> Callable[[], float]:
    engine = _classes(number)
    _evaluate(engine, float(number) + 10.0)
    return lambda: _evaluate(engine, float(number) + 10.0)


def _evaluate(engine: Engine, priority: float) -> float:
    query = PreemptionQuery(priority=priority, pool_name="pool", limit=10)
    return timed_ms(lambda: engine.evaluate(query, 5_000.0))


def _classes(number: int) -> Engine:
    """So many announced tasks, no two of one priority; every other one has time left."""
    engine = Engine()
    for i in range(number):
        task = TaskSpec(
            task_id=f"task-{i}",
            pool_name="pool",
            priority=float(i),
            estimated_duration=10_000.0 + i if i % 2 else None,
        )
        engine.handle(s.TaskAnnounced(task=task, agent_name=f"agent-{i}"), float(i % 1_000))
    return engine
