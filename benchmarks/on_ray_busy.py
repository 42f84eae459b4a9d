"""On a real local Ray: a call of the supervisor on a node whose processors are all busy."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from benchmarks.pairs import bare_ray
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.core import RayScheduler

#: Busy processes for each processor.
_EACH = 2


def on_ray_busy(rounds: int = 40) -> list[Row]:
    """A change of a pool and a call of a plain actor, in turn, beside twice as many busy processes as there
    are processors. Both need a worker's process; the change is also made durable.
    """
    with bare_ray():
        scheduler = RayScheduler("benchmark")
        scheduler.create_pool("pool", resources={"cpu": 1})
        plain = _plain_actor()
        idle = _pairs(scheduler, plain, rounds)
        with _busy(_EACH * (os.cpu_count() or 1)):
            busy = _pairs(scheduler, plain, rounds)
        scheduler.shutdown()
    what = "a change of a pool beside two busy processes per processor, relative to an idle node"
    ours, plains = [[pair[side] for pair in busy] for side in (0, 1)]
    quiet = [pair[0] for pair in idle]
    return [
        at_most(what, statistics.median(ours) / statistics.median(quiet), 10.0, " ×", spread(ours)),
        note("the same on the idle node", spread(quiet)),
        note("a call of a plain actor beside the busy processes", spread(plains)),
    ]


def _plain_actor() -> Any:
    """An actor as Ray starts it. It is there when this returns."""

    @ray.remote(num_cpus=0)
    class Plain:
        def ping(self) -> None:
            """Do nothing."""

    actor = Plain.remote()
    ray.get(actor.ping.remote())
    return actor


def _pairs(scheduler: RayScheduler, plain: Any, rounds: int) -> list[tuple[float, float]]:
    """The change and the plain call, in turn, in ms; one further pair warms up."""
    pairs = [
        (
            timed_ms(lambda cpu=1 + number % 3: scheduler.resize_pool("pool", {"cpu": cpu})),
            timed_ms(lambda: ray.get(plain.ping.remote())),
        )
        for number in range(rounds + 1)
    ]
    return pairs[1:]


@contextmanager
def _busy(number: int) -> Iterator[None]:
    """So many processes of normal priority that never wait."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_never_wait, daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _never_wait() -> None:
    while True:
        pass
