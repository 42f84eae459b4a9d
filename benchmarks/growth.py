"""Costs that must not grow faster than what they look at: their time, and its ratio per doubling."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import msgspec

from benchmarks.groups import SimulatedEngine
from benchmarks.mesh import amounts
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.sim import Job, NodeKind, simulate

#: Linear growth is 2 per doubling; the rest is for the noise of a shared machine.
RATIO = 2.5
#: The same for tasks that all ask for something else.
DISTINCT_RATIO = 2.3
#: GPUs of a job, and seconds that it runs, which are varied by half.
_GPUS, _SECONDS = (1, 1, 1, 2, 4, 8), (60, 300, 900, 3_600)


def growth(jobs: int = 500, rounds: int = 3) -> list[Row]:
    """Each cost at three sizes; that of simulated jobs at two."""
    return [
        *_distinct(jobs, rounds),
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


def _distinct(count: int, rounds: int) -> list[Row]:
    """What twice as many jobs cost of which no two ask for the same, and what they cost where their memory is
    the same.
    """

    def simulated_s(jobs: list[Job]) -> float:
        began = time.process_time()
        simulate(jobs, [NodeKind(count=8, cpu=96, memory_gb=512, gpu=8)])
        return time.process_time() - began

    single, double = distinct_jobs(count), distinct_jobs(2 * count)
    alike = [msgspec.structs.replace(job, memory_gb=4.0 * job.gpus) for job in double]
    times = [(simulated_s(single), simulated_s(double), simulated_s(alike)) for _ in range(rounds)]
    ratios = [two / one for one, two, _ in times]
    what = f"simulate {2 * count:,} jobs on 8 nodes, each with an amount of memory of its own"
    return [
        at_most(
            f"{what}, relative to {count:,} of them",
            statistics.median(ratios),
            DISTINCT_RATIO,
            " ×",
            spread([two for _, two, _ in times], " s"),
        ),
        note("  all with the same memory for each GPU", spread([t for *_, t in times], " s")),
    ]


def distinct_jobs(count: int) -> list[Job]:
    """Jobs that arrive faster than 8 nodes of 8 GPUs can run them, in the order of their arrival."""
    dice, jobs = random.Random(7), list[Job]()
    for number in range(count):
        seconds, gpus = dice.choice(_SECONDS) * dice.uniform(0.5, 1.5), dice.choice(_GPUS)
        jobs.append(
            Job(
                job_id=f"job-{number}",
                submit_s=dice.uniform(0, count),
                duration_s=seconds,
                estimate_s=seconds,
                gpus=gpus,
                cpus=4 * gpus,
                memory_gb=round(dice.uniform(4, 48) * gpus, 3),
            )
        )
    return sorted(jobs, key=lambda job: job.submit_s)


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
