"""On a real local Ray: each call against what plain Ray does for the same, in alternating pairs."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ray
from ray.exceptions import RayActorError

import schedulemesh
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.core import RayScheduler

CPUS = 4
#: Seconds between two measurements, in which Ray clears away what was ended.
PAUSE_S = 0.3


def on_ray(pairs: int = 21, calls: int = 500, tasks: int = 1_000) -> list[Row]:
    """Starts, evictions and evaluations, each against plain Ray."""
    with _ray() as scheduler:
        return [
            *_starts(scheduler, pairs),
            *_evictions(scheduler, pairs),
            *_evaluations(scheduler, calls, tasks),
            note("modules byte-compiled", "yes" if _is_compiled() else "no: starts take longer"),
        ]


@contextlib.contextmanager
def _ray() -> Iterator[RayScheduler]:
    """A Ray of its own, and a scheduler on it."""
    ray.init(
        address="local",
        num_cpus=CPUS,
        object_store_memory=80_000_000,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        scheduler = RayScheduler("benchmark")
        yield scheduler
        scheduler.shutdown()
    finally:
        ray.shutdown()


def _worker_class() -> type:
    """A class with a state, made here so that both sides ship it by value, without this module."""

    class Worker:
        def __init__(self, name, labels):
            self.name = name
            self.labels = labels

        def ping(self):
            return self.name

        def save_state(self):
            return {"name": self.name}

    return Worker


def _starts(scheduler: RayScheduler, pairs: int) -> list[Row]:
    """Submit to first reply, against the same class as a plain actor."""
    scheduler.create_pool("starts", resources={"cpu": CPUS})
    worker = _worker_class()
    plain = ray.remote(worker).options(num_cpus=1)
    numbers = itertools.count()

    def ours() -> float:
        task_id = f"start-{next(numbers)}"
        start = time.perf_counter()
        _replied(_submitted(scheduler, task_id, "starts", worker, 1, 5.0))
        took = _since(start)
        scheduler.complete_task(task_id, end_agent=True)
        return took

    def theirs() -> float:
        start = time.perf_counter()
        handle = plain.remote("plain", {})
        _replied(handle)
        took = _since(start)
        _end(handle)
        return took

    found = _alternate(ours, theirs, pairs)
    return [
        _ratio("submit → first reply, against ray.remote(Cls).remote() → first reply", found, 1.10),
        *_absolute("submit → first reply", "ray.remote(Cls).remote() → first reply", found),
    ]


def _evictions(scheduler: RayScheduler, pairs: int) -> list[Row]:
    """Evict one and start another to first reply, against kill and create; either fills the node."""
    scheduler.create_pool("evictions", resources={"cpu": CPUS})
    worker = _worker_class()
    plain = ray.remote(worker).options(num_cpus=CPUS)
    numbers = itertools.count()

    def ours() -> float:
        number = next(numbers)
        _replied(_submitted(scheduler, f"low-{number}", "evictions", worker, CPUS, 1.0))
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        _replied(_submitted(scheduler, f"high-{number}", "evictions", worker, CPUS, 9.0))
        took = _since(start)
        scheduler.complete_task(f"high-{number}", end_agent=True)
        return took

    def theirs() -> float:
        first = plain.remote("low", {})
        _replied(first)
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        ray.kill(first)
        handle = plain.remote("high", {})
        _replied(handle)
        took = _since(start)
        _end(handle)
        return took

    found = _alternate(ours, theirs, pairs)
    return [
        _ratio("evict one and start another → first reply, against ray.kill + create", found, 1.15),
        *_absolute("evict + start → first reply", "ray.kill + create → first reply", found),
    ]


def _evaluations(scheduler: RayScheduler, calls: int, tasks: int) -> list[Row]:
    """Evaluate from this process, against an empty call of an async actor."""
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
    empty = _empty_actor()

    def ours(limit: int) -> float:
        def call() -> None:
            answer = scheduler.evaluate_preemption(next(priorities), "evaluations", limit=limit)
            if len(answer["candidates"]) != limit:
                raise AssertionError(answer)

        return timed_ms(call)

    def theirs() -> float:
        return timed_ms(lambda: ray.get(empty.nothing.remote()))

    priorities = (5.0 + i * 1e-3 for i in itertools.count())
    found = _alternate(lambda: ours(100), theirs, calls, pause_s=0.0)
    few = _alternate(lambda: ours(10), theirs, calls, pause_s=0.0)
    ray.kill(empty)
    what = f"evaluate_preemption from a driver, {tasks:,} tasks, against an empty async-actor call"
    return [
        _ratio(f"{what}, 100 candidates answered (the default limit)", found, 2.0),
        _ratio(f"{what}, limit=10", few, 2.0),
        *_absolute("evaluate_preemption", "empty async-actor call", found),
    ]


def _empty_actor():
    @ray.remote(num_cpus=0)
    class Empty:
        async def nothing(self):
            return None

    return Empty.remote()


def _alternate(
    ours: Callable[[], float], theirs: Callable[[], float], pairs: int, pause_s: float = PAUSE_S
) -> list[tuple[float, float]]:
    """Times of both sides, pair by pair; each goes first in every other pair. One pair warms up."""
    found = []
    for i in range(pairs + 1):
        times = {}
        for side in (ours, theirs) if i % 2 else (theirs, ours):
            times[side] = side()
            time.sleep(pause_s)
        if i:
            found.append((times[ours], times[theirs]))
        else:
            _use_up_idle_workers(pause_s)
    return found


def _use_up_idle_workers(pause_s: float) -> None:
    """Ray keeps some started processes ready; without them every start of both sides is a new one."""
    if not pause_s:
        return
    handles = [_empty_actor() for _ in range(CPUS)]
    ray.get([handle.nothing.remote() for handle in handles])
    for handle in handles:
        _end(handle)
    time.sleep(pause_s)


def _submitted(scheduler: RayScheduler, task_id: str, pool: str, cls, cpus: int, priority: float):
    answer = scheduler.submit_task_with_preemption(
        task_id, pool, cls, resources={"cpu": cpus}, priority=priority
    )
    if not answer["success"]:
        raise AssertionError(answer)
    return answer["agent"]["handle"]


def _replied(handle) -> None:
    ray.get(handle.ping.remote())


def _end(handle) -> None:
    """Kill a plain actor and wait until Ray knows it dead."""
    ray.kill(handle)
    with contextlib.suppress(RayActorError):
        ray.get(handle.__ray_ready__.remote())


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


def _ratio(what: str, found: list[tuple[float, float]], mark: float) -> Row:
    """The median of the ratios of the pairs."""
    ratios = [mine / other for mine, other in found]
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    detail = f"middle half {quarters[0]:.2f}-{quarters[2]:.2f}, {len(ratios)} pairs"
    return at_most(what, statistics.median(ratios), mark, " ×", detail)


def _absolute(mine: str, other: str, found: list[tuple[float, float]]) -> Iterator[Row]:
    yield note(mine, spread([m for m, _ in found]))
    yield note(other, spread([o for _, o in found]))


def _is_compiled() -> bool:
    """Whether Python finds the package's modules compiled, as an installer leaves them."""
    return Path(importlib.util.cache_from_source(schedulemesh.__file__)).exists()
