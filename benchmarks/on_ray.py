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
            *_evictions(scheduler, pairs, cpus=1),
            *_evictions(scheduler, pairs, cpus=CPUS),
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

    found = _alternate(ours, theirs, pairs, _pause)
    return [
        _ratio("submit → first reply, against ray.remote(Cls).remote() → first reply", found, 1.10),
        *_absolute("submit → first reply", "ray.remote(Cls).remote() → first reply", found),
    ]


def _evictions(scheduler: RayScheduler, pairs: int, cpus: int) -> list[Row]:
    """Evict one and start another to first reply, against kill and create.

    With 1 CPU each only the pool's quota is short, and plain Ray need not wait for the killed actor;
    with all CPUs each the node is full, and both must.
    """
    pool = f"evictions-{cpus}"
    scheduler.create_pool(pool, resources={"cpu": cpus})
    worker = _worker_class()
    plain = ray.remote(worker).options(num_cpus=cpus)
    numbers = itertools.count()

    def ours() -> float:
        number = next(numbers)
        low, high = f"low-{cpus}-{number}", f"high-{cpus}-{number}"
        _replied(_submitted(scheduler, low, pool, worker, cpus, 1.0))
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        _replied(_submitted(scheduler, high, pool, worker, cpus, 9.0))
        took = _since(start)
        scheduler.complete_task(high, end_agent=True)
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

    full = cpus == CPUS
    settle = (lambda: _all_free(scheduler)) if full else _pause
    found = _alternate(ours, theirs, pairs, settle)
    short = "the node is full" if full else "the pool's quota is short"
    what = f"evict one and start another → first reply, against ray.kill + create, {short}"
    return [
        _ratio(what, found, 1.15),
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
    found = _alternate(lambda: ours(100), theirs, calls)
    few = _alternate(lambda: ours(10), theirs, calls)
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
    ours: Callable[[], float],
    theirs: Callable[[], float],
    pairs: int,
    settle: Callable[[], None] | None = None,
) -> list[tuple[float, float]]:
    """Times of both sides, pair by pair; each goes first in every other pair. One pair warms up.

    ``settle`` waits after each until things are as before; without it nothing is started or ended.
    """
    found = []
    for i in range(pairs + 1):
        times = {}
        for side in (ours, theirs) if i % 2 else (theirs, ours):
            times[side] = side()
            if settle is not None:
                settle()
        if i:
            found.append((times[ours], times[theirs]))
        elif settle is not None:
            _use_up_idle_workers()
            settle()
    return found


def _pause() -> None:
    """Let Ray clear away what was ended."""
    time.sleep(PAUSE_S)


def _all_free(scheduler: RayScheduler) -> None:
    """Wait until the scheduler, too, has seen that every CPU is free: of what others use it learns late."""
    _pause()
    deadline = time.monotonic() + 30.0
    while (free := scheduler.cluster_snapshot()["nodes"][0]["free"]).get("cpu") != CPUS:
        if time.monotonic() > deadline:
            raise AssertionError(f"not all CPUs became free: {free}")
        time.sleep(0.1)


def _use_up_idle_workers() -> None:
    """Ray keeps some started processes ready; without them every start of both sides is a new one."""
    handles = [_empty_actor() for _ in range(CPUS)]
    ray.get([handle.nothing.remote() for handle in handles])
    for handle in handles:
        _end(handle)


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
