"""On a real local Ray: the supervisor's CPU time for polls of many hosts, and the latency of attaching."""

from __future__ import annotations

import statistics
import threading
import time

import psutil
import ray

from benchmarks.pairs import bare_ray
from benchmarks.rows import Row, at_most, note, spread
from schedulemesh.core import RayScheduler
from schedulemesh.runtime.agents.command_queue import POLL_S, CommandQueue


def on_ray_recovery(
    hosts: int = 10_000, seconds: float = 20.0, callers: int = 4, attaches: int = 200
) -> list[Row]:
    """Polling and attaching, each on a separate supervisor."""
    with bare_ray():
        return [*_heartbeats(hosts, seconds, callers), *_attaching(attaches)]


def _heartbeats(hosts: int, seconds: float, callers: int) -> list[Row]:
    """The share of one CPU core that the supervisor's process uses while many hosts poll for commands.

    Each host has one poll open and polls again when it is answered, on average after POLL_S.
    """
    scheduler = RayScheduler("beats")
    supervisor = scheduler.supervisor_handle()
    process = psutil.Process(scheduler.about()["pid"])
    ray.get(supervisor.__ray_call__.remote(_add_command_queues, hosts))
    simulators = [
        _simulator_class().remote(supervisor, first, hosts, callers) for first in range(callers)
    ]
    idle = _share(process, 5.0)
    ray.get([simulator.begin.remote(POLL_S) for simulator in simulators])
    time.sleep(2 * POLL_S)
    before = ray.get([simulator.answered.remote() for simulator in simulators])
    latencies: list[float] = []
    stop = threading.Event()
    thread = threading.Thread(target=_query_repeatedly, args=(scheduler, latencies, stop))
    thread.start()
    share = _share(process, seconds)
    stop.set()
    thread.join()
    after = ray.get([simulator.answered.remote() for simulator in simulators])
    rate = (sum(after) - sum(before)) / seconds
    memory_mb = process.memory_info().rss / 2**20
    for simulator in simulators:
        ray.kill(simulator)
    scheduler.shutdown()
    return [
        at_most(
            f"CPU share of the supervisor process with {hosts:,} hosts polling for commands",
            100 * share,
            20.0,
            " %",
            f"{rate:,.0f} polls/s",
        ),
        note("the same supervisor without any host", f"{100 * idle:.3g} %"),
        note("a query during this polling", spread(latencies)),
        note("memory of the supervisor with these hosts", f"{memory_mb:,.0f} MB"),
    ]


def _add_command_queues(supervisor, hosts):
    """Runs in the supervisor: adds command queues as for running agents; Ray could not run so many here."""
    queues = supervisor._service._agents._lines  # noqa: SLF001  # none is open without an agent
    queues.update({(f"host-{n}", 1): CommandQueue() for n in range(hosts)})


def _query_repeatedly(
    scheduler: RayScheduler, latencies: list[float], stop: threading.Event
) -> None:
    while not stop.wait(0.5):
        start = time.perf_counter()
        scheduler.list_pools()
        latencies.append(_since_ms(start))


def _share(process: psutil.Process, seconds: float) -> float:
    """The share of one CPU core that a process uses."""
    start, before = time.perf_counter(), _cpu_s(process)
    time.sleep(seconds)
    return (_cpu_s(process) - before) / (time.perf_counter() - start)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _simulator_class():
    @ray.remote(num_cpus=0, max_concurrency=100_000)
    class Simulator:
        """Simulates every ``step``-th host from the ``first``."""

        def __init__(self, supervisor, first, hosts, step):
            self.supervisor = supervisor
            self.names = [f"host-{n}" for n in range(first, hosts, step)]
            self.count = 0

        async def begin(self, spread_s):
            import asyncio

            gap_s = spread_s / len(self.names)
            self.hosts = [
                asyncio.ensure_future(self.host(name, n * gap_s))
                for n, name in enumerate(self.names)
            ]

        async def host(self, name, wait_s):
            import asyncio

            await asyncio.sleep(wait_s)
            while True:
                await self.supervisor.poll.remote(name, 1)
                self.count += 1

        async def answered(self):
            return self.count

    return Simulator


def _attaching(attaches: int) -> list[Row]:
    """Attach and one query, relative to a call of an async actor, alternately."""
    scheduler = RayScheduler("attach")
    scheduler.create_pool("pool", resources={"cpu": 1})
    actor = _empty_actor_class().remote()
    ray.get(actor.nothing.remote())
    ours, theirs = [], []
    for n in range(attaches + 1):
        start = time.perf_counter()
        RayScheduler.attach("attach").list_pools()
        took = _since_ms(start)
        start = time.perf_counter()
        ray.get(actor.nothing.remote())
        if n:
            ours.append(took)
            theirs.append(_since_ms(start))
    scheduler.shutdown()
    more = statistics.median(ours) - statistics.median(theirs)
    what = "RayScheduler.attach → first result, in addition to a call to an existing actor"
    return [
        at_most(what, more, 50.0, " ms", f"{attaches} pairs"),
        note("RayScheduler.attach → first result", spread(ours)),
        note("a call to an existing actor", spread(theirs)),
    ]


def _empty_actor_class():
    @ray.remote(num_cpus=0)
    class Empty:
        async def nothing(self):
            return None

    return Empty


def _since_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1e3
