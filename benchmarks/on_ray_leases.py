"""Leases on a real local Ray, relative to placement groups of plain Ray."""

from __future__ import annotations

import itertools
import time

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from benchmarks.pairs import absolute, all_free, alternate, own_ray, pause, ratio, since_ms
from benchmarks.rows import Row, at_most, spread
from schedulemesh import Lease
from schedulemesh.core import RayScheduler

#: Actors of a lease that is evicted; each takes a half of a CPU.
_ACTORS = 8
_HALVES = [[{"cpu": 0.5}] * _ACTORS]


def on_ray_leases(pairs: int = 15, evictions: int = 7) -> list[Row]:
    """Leases that are granted, and one that is evicted with its actors."""
    with own_ray() as scheduler:
        create_pools(scheduler)
        return [
            *_granted(scheduler, "kept", pairs, "from a free group"),
            *_granted(scheduler, "plain", pairs, "in a new group"),
            *_evicted(scheduler, evictions),
        ]


def create_pools(scheduler: RayScheduler) -> None:
    """A pool that keeps a group, and one that keeps none."""
    kept = {"enable": True, "max_dynamic_pgs": 1}
    scheduler.create_pool("kept", resources={"cpu": 2}, pg_pool_config=kept)
    scheduler.create_pool("plain", resources={"cpu": 4})


def _granted(scheduler: RayScheduler, pool: str, pairs: int, how: str) -> list[Row]:
    found = lease_times(scheduler, pool, pairs)
    what = f"lease {how} → usable, relative to placement_group() and ready()"
    names = f"lease {how}", "placement_group() and ready()"
    return [ratio(what, found, 2.0), *absolute(*names, found)]


def lease_times(scheduler: RayScheduler, pool: str, pairs: int) -> list[tuple[float, float]]:
    """From the call until the handles can be used, and ``placement_group()`` and ``ready()``: ms."""
    numbers = itertools.count()

    def ours() -> float:
        start = time.perf_counter()
        lease = scheduler.lease(f"{pool}-{next(numbers)}", pool, [[{"cpu": 1}, {"cpu": 1}]])
        for group in lease.placement_groups:
            group.wait(10)
        took = since_ms(start)
        lease.release()
        return took

    def plain() -> float:
        start = time.perf_counter()
        group = placement_group([{"CPU": 1}, {"CPU": 1}])
        ray.get(group.ready())
        took = since_ms(start)
        remove_placement_group(group)
        return took

    return alternate(ours, plain, pairs, pause)


def _evicted(scheduler: RayScheduler, count: int) -> list[Row]:
    """From the release after a notice until the incoming lease has the room of a lease with 8 actors."""
    times = []
    for number in range(count):
        released: list[float] = []

        def save(lease: Lease, released: list[float] = released) -> None:
            released.append(time.perf_counter())
            lease.release()

        low = scheduler.lease(f"low-{number}", "plain", _HALVES, priority=1.0, on_preempt=save)
        _fill(low)
        with scheduler.lease(f"high-{number}", "plain", [[{"cpu": 4}]], priority=9.0, wait=30):
            times.append(since_ms(released[0]))
        all_free(scheduler)
    what = f"evicted lease with {_ACTORS} actors: released → its room is another lease's"
    return [at_most(what, max(times) / 1e3, 2.0, " s", spread(times))]


def _fill(lease: Lease) -> None:
    """An actor in every bundle."""

    @ray.remote(num_cpus=0.5)
    class Member:
        def ping(self):
            return None

    members = [
        Member.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)).remote()
        for group in lease.placement_groups
        for bundle in range(group.bundle_count)
    ]
    ray.get([member.ping.remote() for member in members])
