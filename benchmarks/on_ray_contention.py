"""Evictions on a real local Ray beside an actor of someone else that waits for the same GPUs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from benchmarks.pairs import own_ray, since_ms, worker_class
from benchmarks.rows import Row, at_most, note, spread
from schedulemesh.core import RayScheduler
from schedulemesh.core.backend.ray_usage import DemandReader

GPUS = 2
#: Refusals that say that external work would get, or has got, the room.
_TRUE_REASONS = ("external_demand", "cluster_out_of_resources")
_DEADLINE_S = 30.0


def on_ray_contention(rounds: int = 50) -> list[Row]:
    """Who gets the room with the same shape and with another one, and what looking for demand costs."""
    with own_ray(GPUS) as scheduler:
        scheduler.create_pool("pool", resources={"cpu": 4, "gpu": GPUS})
        return [*_same_shape(scheduler, rounds), *_other_shape(scheduler, rounds), *_looks()]


def _same_shape(scheduler: RayScheduler, rounds: int) -> list[Row]:
    lost, times = 0, []
    for number in range(rounds):
        with _round(scheduler, number, seen=True) as (low, high, _):
            start = time.perf_counter()
            answer = _submit(scheduler, high, GPUS, 9.0)
            times.append(since_ms(start))
            lost += not answer["success"] or [v["task_id"] for v in answer["preempted"]] != [low]
    what = f"eviction with the same shape beside a waiting actor, {rounds} rounds: room lost"
    return [
        at_most(what, lost, 0, " rounds", f"got it {rounds - lost} of {rounds}"),
        note("the same: submission → the incoming task runs", spread(times)),
    ]


def _other_shape(scheduler: RayScheduler, rounds: int) -> list[Row]:
    """In every other round the scheduler does not know yet that the actor waits."""
    untrue, victims_lost, times = 0, 0, []
    outcomes: Counter[str] = Counter()
    for number in range(rounds):
        with _round(scheduler, number, seen=number % 2 == 0) as (low, high, job_id):
            start = time.perf_counter()
            answer = _submit(scheduler, high, 1, 9.0)
            times.append(since_ms(start))
            reason = "success" if answer["success"] else str(answer["reason"])
            outcomes[reason] += 1
            named = answer["success"] or (reason in _TRUE_REASONS and job_id in answer["error"])
            untrue += not named
            victims_lost += not _runs_or_waits(scheduler, low)
    what = f"eviction with another shape beside a waiting actor, {rounds} rounds"
    told = ", ".join(f"{reason} {count}" for reason, count in sorted(outcomes.items()))
    return [
        at_most(f"{what}: neither success nor the true reason", untrue, 0, " rounds", told),
        at_most(f"{what}: the victim neither runs nor waits", victims_lost, 0, " rounds", ""),
        note("the same: submission → answer", spread(times)),
    ]


def _looks(count: int = 50) -> list[Row]:
    """What it costs the supervisor to look for demand where nobody waits."""
    reader, times = DemandReader(), []
    for _ in range(count):
        start = time.process_time()
        reader.read()
        times.append((time.process_time() - start) * 1e3)
    return [note("a look for demand where nobody waits, once a second", spread(times))]


@contextmanager
def _round(scheduler: RayScheduler, number: int, *, seen: bool) -> Iterator[tuple[str, str, str]]:
    """A task that holds all GPUs, and an actor of this job that waits for them: the ids of the task and of
    the next one, and of the job. ``seen``: the scheduler knows of the actor.
    """
    low, high = f"low-{number}", f"high-{number}"
    answer = _submit(scheduler, low, GPUS, 1.0, on_preempted="requeue")
    if not answer["success"]:
        raise AssertionError(f"{low} does not start: {answer}")
    foreign = ray.remote(num_cpus=0, num_gpus=GPUS)(worker_class()).remote("foreign", {})
    _until(lambda: _demands(scheduler))
    if seen:
        _until(lambda: not _submit(scheduler, "probe", 1, 9.0, dry_run=True)["success"])
    try:
        yield low, high, ray.get_runtime_context().get_job_id()
    finally:
        ray.kill(foreign)
        for task_id in (low, high):
            scheduler.cancel_task(task_id)
        _until(lambda: ray.available_resources().get("GPU") == GPUS)
        _until(lambda: _free_gpus(scheduler) == GPUS)
        _until(lambda: _submit(scheduler, "probe", GPUS, 1.0, dry_run=True)["success"])


def _submit(
    scheduler: RayScheduler, task_id: str, gpus: float, priority: float, **more: Any
) -> Any:
    return scheduler.submit_task_with_preemption(
        task_id,
        "pool",
        worker_class(),
        resources={"cpu": 1, "gpu": gpus},
        priority=priority,
        **more,
    )


def _demands(scheduler: RayScheduler) -> bool:
    """Whether Ray has the actor wait."""
    return any(job["waiting"] for job in scheduler.external_usage()["jobs"])


def _free_gpus(scheduler: RayScheduler) -> float:
    return scheduler.cluster_snapshot()["nodes"][0]["free"].get("gpu", 0.0)


def _runs_or_waits(scheduler: RayScheduler, task_id: str) -> bool:
    return task_id in {task["task_id"] for task in scheduler.list_tasks()["tasks"]}


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the cluster did not come to rest")
        time.sleep(0.02)
