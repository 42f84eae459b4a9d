"""On a real local Ray: each call relative to the plain Ray equivalent, in alternating pairs."""

from __future__ import annotations

import importlib.util
import itertools
import time
from pathlib import Path

import ray

import schedulemesh
from benchmarks.pairs import (
    CPUS,
    PAUSE_S,
    absolute,
    all_free,
    alternate,
    empty_actor,
    own_ray,
    pause,
    plain_replacement,
    plain_start,
    ratio,
    replied,
    since_ms,
    worker_class,
)
from benchmarks.rows import Row, note, timed_ms
from schedulemesh.core import RayScheduler


def on_ray(pairs: int = 21, calls: int = 500, tasks: int = 1_000) -> list[Row]:
    """Starts, evictions and evaluations, each relative to plain Ray."""
    with own_ray() as scheduler:
        return [
            *_starts(scheduler, pairs),
            *_evictions(scheduler, pairs, cpus=1),
            *_evictions(scheduler, pairs, cpus=CPUS),
            *_evaluations(scheduler, calls, tasks),
            note(
                "modules compiled to bytecode",
                "yes" if _is_compiled() else "no: starts take longer",
            ),
        ]


def _starts(scheduler: RayScheduler, pairs: int) -> list[Row]:
    """Submit to first reply, relative to the same class as a plain actor."""
    scheduler.create_pool("starts", resources={"cpu": CPUS})
    worker = worker_class()
    plain = ray.remote(worker).options(num_cpus=1)
    numbers = itertools.count()

    def ours() -> float:
        task_id = f"start-{next(numbers)}"
        start = time.perf_counter()
        replied(_submitted(scheduler, task_id, "starts", worker, 1, 5.0))
        took = since_ms(start)
        scheduler.complete_task(task_id, end_agent=True)
        return took

    found = alternate(ours, lambda: plain_start(plain), pairs, pause)
    return [
        ratio("submit → first reply, relative to ray.remote(Cls).remote()", found, 1.10),
        *absolute("submit → first reply", "ray.remote(Cls).remote() → first reply", found),
    ]


def _evictions(scheduler: RayScheduler, pairs: int, cpus: int) -> list[Row]:
    """Evict one and start another to first reply, relative to kill and create.

    With 1 CPU each only the pool's quota is short, and plain Ray need not wait for the killed actor;
    with all CPUs each the node is full, and both must.
    """
    pool = f"evictions-{cpus}"
    scheduler.create_pool(pool, resources={"cpu": cpus})
    worker = worker_class()
    plain = ray.remote(worker).options(num_cpus=cpus)
    numbers = itertools.count()

    def ours() -> float:
        number = next(numbers)
        low, high = f"low-{cpus}-{number}", f"high-{cpus}-{number}"
        replied(_submitted(scheduler, low, pool, worker, cpus, 1.0))
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        replied(_submitted(scheduler, high, pool, worker, cpus, 9.0))
        took = since_ms(start)
        scheduler.complete_task(high, end_agent=True)
        return took

    full = cpus == CPUS
    settle = (lambda: all_free(scheduler)) if full else pause
    found = alternate(ours, lambda: plain_replacement(plain), pairs, settle)
    short = "the node is full" if full else "the pool's quota is short"
    what = f"evict one and start another → first reply, relative to ray.kill + create, {short}"
    return [
        ratio(what, found, 1.15),
        *absolute("evict + start → first reply", "ray.kill + create → first reply", found),
    ]


def _evaluations(scheduler: RayScheduler, calls: int, tasks: int) -> list[Row]:
    """Evaluate from this process, relative to an empty call of an async actor."""
    scheduler.create_pool("evaluations", resources={"cpu": 1})
    for number in range(tasks):
        scheduler.register_running_task(
            f"registered-{number}",
            f"elsewhere-{number}",
            "evaluations",
            priority=number % 10 * 0.5,
            labels={"job_id": f"job-{number}"},
            estimated_duration=(None, 3600.0)[number % 2],
        )
    empty = empty_actor()

    def ours(limit: int) -> float:
        def call() -> None:
            answer = scheduler.evaluate_preemption(next(priorities), "evaluations", limit=limit)
            if len(answer["candidates"]) != limit:
                raise AssertionError(answer)

        return timed_ms(call)

    def theirs() -> float:
        return timed_ms(lambda: ray.get(empty.nothing.remote()))

    priorities = (5.0 + i * 1e-3 for i in itertools.count())
    found = alternate(lambda: ours(100), theirs, calls)
    few = alternate(lambda: ours(10), theirs, calls)
    ray.kill(empty)
    what = f"evaluate_preemption from a driver, {tasks:,} tasks, relative to an empty async call"
    return [
        ratio(f"{what}, 100 candidates (the default limit)", found, 2.0),
        ratio(f"{what}, limit=10", few, 2.0),
        *absolute("evaluate_preemption", "empty async-actor call", found),
    ]


def _submitted(scheduler: RayScheduler, task_id: str, pool: str, cls, cpus: int, priority: float):
    answer = scheduler.submit_task_with_preemption(
        task_id, pool, cls, resources={"cpu": cpus}, priority=priority
    )
    if not answer["success"]:
        raise AssertionError(answer)
    return answer["agent"]["handle"]


def _is_compiled() -> bool:
    """Whether the package's modules are compiled to bytecode, as after an installation."""
    return Path(importlib.util.cache_from_source(schedulemesh.__file__)).exists()
