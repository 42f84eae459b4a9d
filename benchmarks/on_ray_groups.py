"""Placement-group pools on a real local Ray, relative to plain Ray without them."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from benchmarks.pairs import (
    CPUS,
    PAUSE_S,
    absolute,
    all_free,
    alternate,
    own_ray,
    pause,
    plain_replacement,
    plain_start,
    ratio,
    replied,
    since_ms,
    worker_class,
)
from benchmarks.rows import Row
from schedulemesh.core import RayScheduler

Worker = worker_class()


def on_ray_groups(pairs: int = 9) -> list[Row]:
    """Starts with a warm host, groups that are handed over, and idle groups."""
    with own_ray() as scheduler:
        return [
            *_starts(scheduler, pairs),
            *_handed_over(scheduler, pairs),
            *_idle_group(scheduler, pairs),
        ]


def _starts(scheduler: RayScheduler, pairs: int) -> list[Row]:
    found = start_times(scheduler, pairs)
    what = (
        "start in a reserved group with a warm host → first reply, relative to a plain cold actor"
    )
    return [
        ratio(what, found, 0.03),
        *absolute("reserved group, warm host → first reply", "plain cold actor", found),
    ]


def start_times(scheduler: RayScheduler, pairs: int) -> list[tuple[float, float]]:
    """Submit into a reserved group with a warm host, and start the same class as a plain cold actor: ms."""
    _reserve(scheduler, "starts", quota=1)
    plain = ray.remote(Worker).options(num_cpus=1)
    numbers = itertools.count()

    def ours() -> float:
        _await_ready_host(scheduler, "starts")
        task_id = f"start-{next(numbers)}"
        start = time.perf_counter()
        replied(_submitted(scheduler, task_id, "starts", 9.0))
        took = since_ms(start)
        scheduler.complete_task(task_id, end_agent=True)
        return took

    found = alternate(ours, lambda: plain_start(plain), pairs, pause)
    scheduler.resize_pool("starts", pg_pool_config={"enable": False})
    return found


def _handed_over(scheduler: RayScheduler, pairs: int) -> list[Row]:
    found = handed_over_times(scheduler, pairs)
    what = (
        "evict, start in the same group with a warm host → first reply, relative to kill + create"
    )
    return [
        ratio(what, found, 0.05),
        *absolute("handed over → first reply", "ray.kill + create → first reply", found),
    ]


def handed_over_times(scheduler: RayScheduler, pairs: int) -> list[tuple[float, float]]:
    """Evict a victim and start the incoming task in its group, and ray.kill and create: ms."""
    _reserve(scheduler, "handed-over", quota=2)
    plain = ray.remote(Worker).options(num_cpus=1)
    numbers = itertools.count()

    def ours() -> float:
        number = next(numbers)
        low, high = f"low-{number}", f"high-{number}"
        _await_ready_host(scheduler, "handed-over")
        replied(_submitted(scheduler, low, "handed-over", 6.0))
        _await_ready_host(scheduler, "handed-over")
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        replied(_submitted(scheduler, high, "handed-over", 9.0, evicting=low))
        took = since_ms(start)
        scheduler.complete_task(high, end_agent=True)
        return took

    found = alternate(ours, lambda: plain_replacement(plain), pairs, pause)
    scheduler.resize_pool("handed-over", pg_pool_config={"enable": False})
    return found


def _idle_group(scheduler: RayScheduler, pairs: int) -> list[Row]:
    """Assign an idle dynamic group to a task, relative to removing and creating a group of all CPUs."""
    config = {"enable": True, "max_dynamic_pgs": 1}
    all_free(scheduler)
    scheduler.ensure_pool("kept", resources={"cpu": CPUS}, pg_pool_config=config)
    numbers = itertools.count()
    _use(scheduler, next(numbers))

    def ours() -> float:
        return _use(scheduler, next(numbers))

    def theirs() -> float:
        scheduler.resize_pool("kept", pg_pool_config={"max_dynamic_pgs": 0})
        _await_all_free()
        first = placement_group([{"CPU": CPUS}])
        first.wait(60)
        start = time.perf_counter()
        remove_placement_group(first)
        second = placement_group([{"CPU": CPUS}])
        if not second.wait(60):
            raise AssertionError("the group was not placed")
        took = since_ms(start)
        remove_placement_group(second)
        _await_all_free()
        all_free(scheduler)
        scheduler.resize_pool("kept", pg_pool_config={"max_dynamic_pgs": 1})
        _use(scheduler, next(numbers))
        return took

    found = alternate(ours, theirs, pairs, pause)
    what = "assign an idle dynamic group, durably, relative to remove + create on a full cluster"
    return [
        ratio(what, found, 0.05),
        *absolute("assign an idle group", "remove + create → placed", found),
    ]


def _use(scheduler: RayScheduler, number: int) -> float:
    """Milliseconds from a submission until its task has the pool's group; the task is then ended."""
    task_id = f"kept-{number}"
    with ThreadPoolExecutor(1) as executor:
        start = time.perf_counter()
        submitting = executor.submit(_submitted, scheduler, task_id, "kept", 5.0, cpus=CPUS)
        while _group_member(scheduler) != task_id and not submitting.done():
            pass
        took = since_ms(start)
        replied(submitting.result())
    scheduler.complete_task(task_id, end_agent=True)
    return took


def _group_member(scheduler: RayScheduler) -> str | None:
    groups = scheduler.pg_pool_stats("kept")["pools"]["kept"]["groups"]
    return groups[0]["agent"] if groups else None


def _reserve(scheduler: RayScheduler, pool: str, quota: int) -> None:
    """A pool with one reserved group of one CPU and a warm host in it."""
    config = {
        "enable": True,
        "high_priority_pg_specs": [{"cpu": 1}],
        "enable_dynamic_pgs": False,
        "warm": {"actor_class": Worker, "count": 1},
    }
    answer = scheduler.ensure_pool(pool, resources={"cpu": quota}, pg_pool_config=config)
    if not answer["success"]:
        raise AssertionError(answer)


def _await_ready_host(scheduler: RayScheduler, pool: str) -> None:
    deadline = time.monotonic() + 30.0
    while not scheduler.pg_pool_stats(pool)["pools"][pool]["warm"]["ready"]:
        if time.monotonic() > deadline:
            raise AssertionError(scheduler.pg_pool_stats(pool))
        time.sleep(0.05)


def _await_all_free() -> None:
    deadline = time.monotonic() + 30.0
    while ray.available_resources().get("CPU", 0.0) < CPUS:
        if time.monotonic() > deadline:
            raise AssertionError(ray.available_resources())
        time.sleep(0.05)


def _submitted(
    scheduler: RayScheduler,
    task_id: str,
    pool: str,
    priority: float,
    evicting: str | None = None,
    cpus: int = 1,
):
    answer = scheduler.submit_with_pg_preemption(
        task_id, pool, Worker, resources={"cpu": cpus}, priority=priority, agent_name=task_id
    )
    evicted = [victim["task_id"] for victim in answer.get("preempted", [])]
    if not answer["success"] or evicted != ([] if evicting is None else [evicting]):
        raise AssertionError(answer)
    return answer["agent"]["handle"]
