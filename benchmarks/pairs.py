"""Pairs of measurements on a real Ray: each call against what plain Ray does for the same."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayActorError

from benchmarks.rows import Row, at_most, note, spread
from schedulemesh.core import RayScheduler

CPUS = 4
#: Seconds between two measurements, in which Ray cleans up terminated processes.
PAUSE_S = 0.3


@contextlib.contextmanager
def bare_ray(gpus: int = 0) -> Iterator[None]:
    """A separate local Ray, with GPUs that need not exist."""
    ray.init(
        address="local",
        num_cpus=CPUS,
        num_gpus=gpus,
        object_store_memory=80_000_000,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def own_ray(gpus: int = 0) -> Iterator[RayScheduler]:
    """A separate local Ray, and a scheduler on it."""
    with bare_ray(gpus):
        scheduler = RayScheduler("benchmark")
        yield scheduler
        scheduler.shutdown()


def worker_class() -> type:
    """A class with a state, defined here so that both sides pickle it by value, without this module."""

    class Worker:
        def __init__(self, name, labels):
            self.name = name
            self.labels = labels

        def ping(self):
            return self.name

        def save_state(self):
            return {"name": self.name}

    return Worker


def empty_actor():
    @ray.remote(num_cpus=0)
    class Empty:
        async def nothing(self):
            return None

    return Empty.remote()


def alternate(
    ours: Callable[[], float],
    theirs: Callable[[], float],
    pairs: int,
    settle: Callable[[], None] | None = None,
) -> list[tuple[float, float]]:
    """Times of both sides in pairs; the sides take turns to go first. One additional pair warms up.

    ``settle`` waits after each measurement until the initial state is restored; None: nothing was started.
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


def pause() -> None:
    """Let Ray clean up terminated processes."""
    time.sleep(PAUSE_S)


def all_free(scheduler: RayScheduler) -> None:
    """Wait until the scheduler, too, sees every CPU as free: it learns of external usage with a delay."""
    pause()
    deadline = time.monotonic() + 30.0
    while (free := scheduler.cluster_snapshot()["nodes"][0]["free"]).get("cpu") != CPUS:
        if time.monotonic() > deadline:
            raise AssertionError(f"not all CPUs became free: {free}")
        time.sleep(0.1)


def _use_up_idle_workers() -> None:
    """Use up the idle worker processes that Ray keeps, so that every start creates a new process."""
    handles = [empty_actor() for _ in range(CPUS)]
    ray.get([handle.nothing.remote() for handle in handles])
    for handle in handles:
        end_actor(handle)


def replied(handle) -> None:
    ray.get(handle.ping.remote())


def end_actor(handle) -> None:
    """Kill a plain actor and wait until Ray reports it as dead."""
    ray.kill(handle)
    with contextlib.suppress(RayActorError):
        ray.get(handle.__ray_ready__.remote())


def plain_start(plain: Any) -> float:
    """Milliseconds from creating a plain actor to its first reply; it is killed afterwards."""
    start = time.perf_counter()
    handle = plain.remote("plain", {})
    replied(handle)
    took = since_ms(start)
    end_actor(handle)
    return took


def plain_replacement(plain: Any) -> float:
    """Milliseconds from killing a plain actor to the first reply of the next, which is killed afterwards."""
    first = plain.remote("low", {})
    replied(first)
    time.sleep(PAUSE_S)
    start = time.perf_counter()
    ray.kill(first)
    handle = plain.remote("high", {})
    replied(handle)
    took = since_ms(start)
    end_actor(handle)
    return took


def since_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


def ratio(what: str, found: list[tuple[float, float]], target: float) -> Row:
    """The median of the ratios of the pairs."""
    ratios = [mine / other for mine, other in found]
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    detail = f"middle half {quarters[0]:.2f}-{quarters[2]:.2f}, {len(ratios)} pairs"
    return at_most(what, statistics.median(ratios), target, " ×", detail)


def absolute(mine: str, other: str, found: list[tuple[float, float]]) -> Iterator[Row]:
    yield note(mine, spread([m for m, _ in found]))
    yield note(other, spread([o for _, o in found]))
