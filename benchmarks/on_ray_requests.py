"""On a real local Ray: what a request costs, relative to the least that its way there costs.

A submission that waits is compared with an empty call of an async actor, and a read over HTTP with a route of
Starlette that answers a constant. The sides take turns, and the ratio is that of their rates.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import ray

from benchmarks.on_ray_queue import own_home
from benchmarks.pairs import bare_ray
from benchmarks.request_client import EMPTY, NAME, NAMESPACE, NEED
from benchmarks.rows import Row, at_least, at_most, note, spread
from schedulemesh.config.discovery import Discovered, found
from schedulemesh.config.http import home_folder
from schedulemesh.core import RayScheduler

#: Dashboards, and the seconds between two of their reads.
_DASHBOARDS, _EVERY_S = 3, 1.0
_STATUS, _QUEUE = "/api/v1/status", "/api/v1/queue?limit=1000"

#: A route that does nothing, served as ASGI applications usually are.
_BARE = """
import socket, sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def nothing(request):
    return JSONResponse({"success": True})

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen()
print(listening.getsockname()[1], flush=True)
app = Starlette(routes=[Route("/", nothing)])
server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
server.run(sockets=[listening])
"""


def on_ray_requests(
    calls: int = 400, rounds: int = 7, waiting: int = 5_000, seconds: float = 8.0
) -> list[Row]:
    """Submissions of one client and of eight, reads over HTTP, and a caller beside dashboards."""
    with own_home() as _, bare_ray(), ExitStack() as opened:
        scheduler = opened.enter_context(scheduler_and_empty_actor())
        rows = _reads(calls, rounds)
        rows += _submissions(calls, rounds, clients=1)
        rows += _submissions(calls // 2, rounds, clients=8)
        rows += _beside_dashboards(scheduler, waiting, seconds)
    return rows


@contextmanager
def scheduler_and_empty_actor() -> Iterator[RayScheduler]:
    """A scheduler with a pool in which nothing fits, and an actor whose calls do nothing."""
    empty = _empty_actor()
    ray.get(empty.nothing.remote())
    scheduler = RayScheduler(NAME, namespace=NAMESPACE, detached=True, http=0)
    scheduler.create_pool("pool", resources=NEED)
    yield scheduler
    scheduler.shutdown()


def _empty_actor():
    @ray.remote(num_cpus=0)
    class Empty:
        async def nothing(self) -> None:
            """Do nothing."""

    return Empty.options(name=EMPTY, namespace=NAMESPACE).remote()


def _submissions(calls: int, rounds: int, clients: int) -> list[Row]:
    who = "1 client" if clients == 1 else f"{clients} clients"
    what = f"`submit(queue=True)` one after the other / empty actor call, {who}"
    return _compared(what, submission_rates(calls, rounds, clients), 0.7)


def submission_rates(calls: int, rounds: int, clients: int) -> list[tuple[float, float]]:
    """``submit(queue=True)`` one after the other in each client, and empty calls: rates of both."""
    with ExitStack() as opened:
        processes = [
            opened.enter_context(_client(number + 10 * clients)) for number in range(clients)
        ]

        def rate(what: str) -> float:
            begin = time.perf_counter()
            for process in processes:
                print(json.dumps([what, calls]), file=process.stdin, flush=True)
            for process in processes:
                _next_line(process)
            return clients * calls / (time.perf_counter() - begin)

        return _alternate(lambda: rate("submit"), lambda: rate("empty"), rounds)


@contextmanager
def _client(number: int) -> Iterator[subprocess.Popen[str]]:
    """A client process that is ready; it ends when its standard input is closed."""
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "benchmarks.request_client", address, str(number)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        _next_line(client)
        yield client
        client.communicate()


def _next_line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise AssertionError(f"a process ended with status {process.wait()}")
    return line


def _reads(calls: int, rounds: int) -> list[Row]:
    return _compared("HTTP read / bare Starlette route, 1 client", read_rates(calls, rounds), 0.3)


def read_rates(calls: int, rounds: int) -> list[tuple[float, float]]:
    """Reads over HTTP on one connection, and requests of a route that does nothing: rates of both."""
    file = _discovered()
    host, port = urlsplit(file.url).hostname or "", urlsplit(file.url).port or 0
    with (
        _bare_route() as bare,
        contextlib.closing(_Reader(bare, "/")) as theirs,
        contextlib.closing(_Reader((host, port), _STATUS, file.token)) as ours,
    ):
        return _alternate(lambda: ours.rate(calls), lambda: theirs.rate(calls), rounds)


@contextmanager
def _bare_route() -> Iterator[tuple[str, int]]:
    with subprocess.Popen(
        [sys.executable, "-c", _BARE], stdout=subprocess.PIPE, text=True
    ) as process:
        yield "127.0.0.1", int(_next_line(process))
        process.kill()


class _Reader:
    """Makes the same request again and again on one connection."""

    def __init__(self, address: tuple[str, int], path: str, token: str = "") -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"GET {path} HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\n"
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
        self._request = f"{head}{authorization}\r\n".encode()
        self.read()

    def read(self) -> None:
        self._socket.sendall(self._request)
        answer = http.client.HTTPResponse(self._socket)
        answer.begin()
        body = answer.read()
        if answer.status != http.client.OK:
            raise AssertionError(body)

    def rate(self, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            self.read()
        return calls / (time.perf_counter() - begin)

    def close(self) -> None:
        self._socket.close()


def _discovered() -> Discovered:
    import os

    while True:
        file = found(home_folder(os.environ), NAMESPACE, NAME)
        if file is not None and file.url:
            return file
        time.sleep(0.05)


def _beside_dashboards(scheduler: RayScheduler, waiting: int, seconds: float) -> list[Row]:
    """Another caller's calls beside dashboards that read the queue over HTTP, and without them."""
    queued = len(scheduler.list_queue()["tasks"])
    for first in range(queued, waiting, 100):
        scheduler.submit_many(waiting_tasks(first, 100))
    alone = _latencies(scheduler, seconds)
    ended = threading.Event()
    threads = [threading.Thread(target=_look, args=(ended,)) for _ in range(_DASHBOARDS)]
    for thread in threads:
        thread.start()
    beside = _latencies(scheduler, seconds)
    ended.set()
    for thread in threads:
        thread.join()
    who = f"{_DASHBOARDS} dashboards that read each second, {waiting:,} waiting"
    what = f"{who}: p99 of another caller / without"
    p99 = [statistics.quantiles(each, n=100)[98] for each in (beside, alone)]
    detail = f"{p99[0]:.2g} ms, {p99[1]:.2g} ms without"
    return [
        at_most(what, p99[0] / p99[1], 2.0, " ×", detail),
        note(
            "medians of the same",
            f"{statistics.median(beside):.2g} ms, {statistics.median(alone):.2g} ms",
        ),
    ]


def waiting_tasks(first: int, count: int) -> list[dict[str, object]]:
    """What ``submit_many`` takes for tasks that wait: so many, numbered from the first."""
    from benchmarks.pairs import worker_class

    worker = worker_class()
    return [
        {
            "task_id": f"w-{n}",
            "pool_name": "pool",
            "actor_class": worker,
            "resources": NEED,
            "queue": True,
        }
        for n in range(first, first + count)
    ]


def _latencies(scheduler: RayScheduler, seconds: float) -> list[float]:
    """What calls of another caller take, in ms, one after the other with a pause."""
    found_ms = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin = time.perf_counter()
        scheduler.list_pools()
        found_ms.append((time.perf_counter() - begin) * 1e3)
        time.sleep(0.002)
    return found_ms


def _look(ended: threading.Event) -> None:
    """Read what a dashboard shows, each second."""
    file = _discovered()
    address = (urlsplit(file.url).hostname or "", urlsplit(file.url).port or 0)
    readers = [_Reader(address, path, file.token) for path in (_STATUS, _QUEUE)]
    while not ended.wait(_EVERY_S):
        for reader in readers:
            reader.read()
    for reader in readers:
        reader.close()


def _alternate(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> list[tuple[float, float]]:
    """The rates of both sides in turn; one further round warms up."""
    pairs = []
    for number in range(rounds + 1):
        if number % 2:
            other, mine = theirs(), ours()
        else:
            mine, other = ours(), theirs()
        pairs.append((mine, other))
    return pairs[1:]


def _compared(what: str, pairs: Sequence[tuple[float, float]], target: float) -> list[Row]:
    ratios = [mine / other for mine, other in pairs]
    detail = f"{min(ratios):.2f}-{max(ratios):.2f}, {len(ratios)} rounds"
    return [
        at_least(what, statistics.median(ratios), target, " ×", detail),
        note("  ours", spread([mine for mine, _ in pairs], " /s")),
        note("  the other", spread([other for _, other in pairs], " /s")),
    ]
