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
from schedulemesh.runtime.command_queue import POLL_S, CommandQueue


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
    ray.get(supervisor.__ray_call__.remote(_open_lines, hosts))
    players = [_player().remote(supervisor, first, hosts, callers) for first in range(callers)]
    idle = _share(process, 5.0)
    ray.get([player.begin.remote(POLL_S) for player in players])
    time.sleep(2 * POLL_S)
    before = ray.get([player.answered.remote() for player in players])
    answers: list[float] = []
    over = threading.Event()
    beside = threading.Thread(target=_ask, args=(scheduler, answers, over))
    beside.start()
    share = _share(process, seconds)
    over.set()
    beside.join()
    after = ray.get([player.answered.remote() for player in players])
    rate = (sum(after) - sum(before)) / seconds
    memory_mb = process.memory_info().rss / 2**20
    for player in players:
        ray.kill(player)
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
        note("a query during this polling", spread(answers)),
        note("memory of the supervisor with these hosts", f"{memory_mb:,.0f} MB"),
    ]


def _open_lines(supervisor, hosts):
    """Runs in the supervisor: adds command queues as for running agents; Ray could not run so many here."""
    lines = supervisor._service._agents._lines  # noqa: SLF001  # none is open without an agent
    lines.update({(f"host-{n}", 1): CommandQueue() for n in range(hosts)})


def _ask(scheduler: RayScheduler, answers: list[float], over: threading.Event) -> None:
    while not over.wait(0.5):
        start = time.perf_counter()
        scheduler.list_pools()
        answers.append(_since(start))


def _share(process: psutil.Process, seconds: float) -> float:
    """The share of one CPU core that a process uses."""
    start, before = time.perf_counter(), _cpu_s(process)
    time.sleep(seconds)
    return (_cpu_s(process) - before) / (time.perf_counter() - start)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _player():
    @ray.remote(num_cpus=0, max_concurrency=100_000)
    class Player:
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

    return Player


def _attaching(attaches: int) -> list[Row]:
    """Attach and one query, relative to a call of an async actor, alternately."""
    scheduler = RayScheduler("attach")
    scheduler.create_pool("pool", resources={"cpu": 1})
    living = _living().remote()
    ray.get(living.nothing.remote())
    ours, theirs = [], []
    for n in range(attaches + 1):
        start = time.perf_counter()
        RayScheduler.attach("attach").list_pools()
        took = _since(start)
        start = time.perf_counter()
        ray.get(living.nothing.remote())
        if n:
            ours.append(took)
            theirs.append(_since(start))
    scheduler.shutdown()
    more = statistics.median(ours) - statistics.median(theirs)
    what = "RayScheduler.attach → first result, in addition to a call to an existing actor"
    return [
        at_most(what, more, 50.0, " ms", f"{attaches} pairs"),
        note("RayScheduler.attach → first result", spread(ours)),
        note("a call to an existing actor", spread(theirs)),
    ]


def _living():
    @ray.remote(num_cpus=0)
    class Living:
        async def nothing(self):
            return None

    return Living


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1e3
