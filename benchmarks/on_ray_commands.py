"""On a real local Ray: what a command takes as a whole process, relative to a Python that does nothing."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.on_ray_queue import own_home
from benchmarks.pairs import bare_ray, worker_class
from benchmarks.rows import Row, at_most, note, spread
from schedulemesh.core import RayScheduler

#: Wall time and processor time of a process, in seconds.
Taken = tuple[float, float]

_NAME = "benchmark"
_NOTHING = ["-c", "pass"]


def on_ray_commands(agents: int = 2, rounds: int = 15, waiting: int = 10_000) -> list[Row]:
    """`status` and `queue` on a living scheduler, over its HTTP API, and `--help`."""
    with own_home(), bare_ray(), _served() as scheduler:
        scheduler.create_pool("pool", resources={"cpu": 4})
        for number in range(agents):
            _insist(
                scheduler.submit_task_with_preemption(
                    f"task-{number}", "pool", worker_class(), {"cpu": 1}
                )
            )
        name = ["--name", _NAME, "--namespace", _NAME]
        status = _pairs(["-m", "schedulemesh", "status", *name], "task-0", rounds)
        help_text = _pairs(["-m", "schedulemesh", "--help"], "status", rounds)
        _fill_queue(scheduler, waiting)
        queue = _pairs(["-m", "schedulemesh", "queue", "--limit", "0", *name], "waits-1", rounds)
    what = "`schedulemesh status` on a living scheduler, the whole process, relative to `python -c pass`"
    walls = [ours[0] / plain[0] for ours, plain in status]
    return [
        at_most(
            what,
            statistics.median(walls),
            12.0,
            " ×",
            f"{min(walls):.2g}-{max(walls):.2g}, {rounds} pairs",
        ),
        note("the same, processor time", spread([o[1] / p[1] for o, p in status], " ×")),
        note("`schedulemesh status`", spread([ours[0] for ours, _ in status], " s")),
        note("`python -c pass`", spread([plain[0] for _, plain in status], " s")),
        at_most(
            "`schedulemesh --help`, the whole process",
            statistics.median(ours[0] for ours, _ in help_text),
            0.3,
            " s",
            f"processor time {spread([ours[1] for ours, _ in help_text], ' s')}",
        ),
        at_most(
            f"`schedulemesh queue` with {waiting:,} tasks that wait, the whole process",
            statistics.median(ours[0] for ours, _ in queue),
            0.3,
            " s",
            f"processor time {spread([ours[1] for ours, _ in queue], ' s')}",
        ),
    ]


def _fill_queue(scheduler: RayScheduler, tasks: int) -> None:
    """Submit tasks that wait, because the pool has not the CPUs for any of them as long as the others run."""
    work = {"pool_name": "pool", "actor_class": worker_class(), "resources": {"cpu": 4}}
    names = (f"waits-{number}" for number in range(1, tasks + 1))
    answer = scheduler.submit_many([{**work, "task_id": n, "queue": True} for n in names])
    _insist(dict(answer))


@contextmanager
def _served() -> Iterator[RayScheduler]:
    """A scheduler whose HTTP API answers."""
    scheduler = RayScheduler(_NAME, namespace=_NAME, http=0)
    until = time.monotonic() + 60.0
    while scheduler.about()["http"] is None:
        if time.monotonic() > until:
            raise AssertionError("the HTTP API does not serve")
        time.sleep(0.1)
    yield scheduler
    scheduler.shutdown()


def _insist(answer: dict[str, object]) -> None:
    if not answer["success"]:
        raise AssertionError(answer)


def _pairs(arguments: Sequence[str], shown: str, rounds: int) -> list[tuple[Taken, Taken]]:
    """The command and the Python that does nothing, in turn; one further pair warms up."""
    found = []
    for number in range(rounds + 1):
        ours = _taken(arguments, shown)
        plain = _taken(_NOTHING, "")
        if number:
            found.append((ours, plain))
    return found


def _taken(arguments: Sequence[str], shown: str) -> Taken:
    """What a Python process takes from its start to its end; it must print a text."""
    before, began = _children_s(), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)
    wall_s, own_s = time.perf_counter() - began, _children_s() - before
    if shown not in done.stdout:
        raise AssertionError(done.stdout[-1000:])
    return wall_s, own_s


def _children_s() -> float:
    """The processor time of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
