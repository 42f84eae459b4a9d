"""On a real local Ray: what it costs the supervisor to know which job holds what, once a second."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import ray

from benchmarks.pairs import bare_ray
from benchmarks.rows import Row, at_most, note, spread
from schedulemesh.core.backend.ray_usage import UsageReader
from schedulemesh.runtime.jobs.work import jobs_on, work_of_jobs

#: Drivers that run at the same time.
_AT_ONCE = 4

#: Makes detached actors that wait for room: their entries are in Ray's tables, and no process is needed.
_DRIVER = """
import sys
import ray
ray.init(namespace="attribution", log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1000)
class Waits:
    pass

label = "x" * 400
actors = [
    Waits.options(name=f"{label}-{sys.argv[1]}-{n}", lifetime="detached").remote()
    for n in range(int(sys.argv[2]))
]
"""


def on_ray_attribution(jobs: int = 20, actors: int = 1_000, rounds: int = 30) -> list[Row]:
    """Processor time of a look at all holders, with nothing and with some of them changed since the last."""
    with bare_ray():
        _fill(jobs, actors // jobs)
        reader = UsageReader()
        first = _cpu_ms(lambda: _look(reader))
        quiet = [_cpu_ms(lambda: _look(reader)) for _ in range(rounds)]
        busy = []
        for round_ in range(rounds):
            _change(round_)
            busy.append(_cpu_ms(lambda: _look(reader)))
        found = len(reader.read().holders)
    what = (
        f"attribution once a second, {actors:,} actors of {jobs} jobs, some of them new each time"
    )
    return [
        at_most(what, statistics.mean(busy) / 10, 2.0, " % of a core", spread(busy)),
        note("the same, nothing new", spread(quiet)),
        note("the first time", f"{first:,.3g} ms for {found:,} holders"),
    ]


def _look(reader: UsageReader) -> None:
    usage = reader.read()
    jobs_on(work_of_jobs(usage, usage.holders), "")


def _cpu_ms(call: object) -> float:
    """Processor time of the whole process for a call."""
    assert callable(call)
    time.sleep(0.02)  # what came before is over
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def _change(round_: int) -> None:
    """Twenty actors more."""
    for number in range(20):
        _Waits.options(name=f"more-{round_}-{number}", lifetime="detached").remote()


@ray.remote(num_cpus=1000)
class _Waits:
    """Waits for room for ever."""


def _fill(jobs: int, each: int) -> None:
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    waiting = list(range(jobs))
    while waiting:
        batch, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        drivers = [
            subprocess.Popen([sys.executable, "-c", _DRIVER, str(job), str(each)], env=environment)
            for job in batch
        ]
        if any(driver.wait() for driver in drivers):
            raise AssertionError("a driver failed")
