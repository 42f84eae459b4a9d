"""On a real local Ray: durable submissions into a long queue, its listing, recovery and cancellation."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest.mock import patch

import ray
from typing_extensions import Self

from benchmarks.mesh import POOLS
from benchmarks.pairs import bare_ray
from benchmarks.queue_client import NAME, NAMESPACE
from benchmarks.rows import Row, at_least, at_most, note, spread
from schedulemesh.core import RayScheduler

CLIENTS = 8
#: Tasks in one call of ``submit_many``.
BATCH = 100
#: The Ray of this benchmark has no GPU: tasks wait as for nodes that an autoscaler may add.
NEED = {"gpu": 1.0}


def on_ray_queue(
    waiting: int = 15_000, single: int = 1_000, batched: int = 8_000, rounds: int = 5
) -> list[Row]:
    """The marks of a queue of 15,000 tasks."""
    with own_home(), bare_ray(), Mesh() as mesh:
        mesh.submit(waiting, BATCH)
        alone = [mesh.submit_and_kill(single, 1) for _ in range(rounds)]
        together = [mesh.submit_and_kill(batched, BATCH) for _ in range(rounds)]
        listing = _listing(waiting, rounds)
        cancelled_s = mesh.cancel(mesh.acknowledged)
    into = f"durable submissions into a queue of {waiting:,}, {CLIENTS} client processes"
    return [
        *_rates(f"{into}, one `submit(queue=True)` after the other", alone),
        *_rates(f"{into}, `submit_many` of {BATCH}", together),
        at_most(
            f"SIGKILL with {waiting + single:,} queued → queue listed again, none lost",
            statistics.median(killed.recovered_s for killed in alone),
            1.0,
            " s",
            spread([killed.recovered_s for killed in alone], " s"),
        ),
        *listing,
        at_most(f"cancel {waiting:,} queued tasks in one call", cancelled_s, 3.0, " s"),
    ]


def _rates(what: str, rounds: Sequence[Killed]) -> Iterator[Row]:
    rates = [killed.rate for killed in rounds]
    yield at_least(what, statistics.median(rates), 1_000, " /s", spread(rates, " /s"))


class Killed(NamedTuple):
    """One round of submissions, after which the supervisor was killed."""

    #: Acknowledged submissions per second.
    rate: float
    #: Seconds from SIGKILL until the complete queue was listed again.
    recovered_s: float


class Mesh:
    """A scheduler with pools in which nothing fits, and clients in processes of their own."""

    def __init__(self) -> None:
        self._open = ExitStack()
        #: The ids of all tasks whose submission was acknowledged, and which were not cancelled since.
        self.acknowledged: set[str] = set()

    def __enter__(self) -> Self:
        self.scheduler = RayScheduler(NAME, namespace=NAMESPACE, detached=True, http=0)
        self._open.callback(self.scheduler.shutdown)
        for i in range(POOLS):
            self.scheduler.create_pool(f"pool-{i}", resources=NEED)
        self._clients = [self._open.enter_context(_client(i)) for i in range(CLIENTS)]
        for client in self._clients:
            _acknowledged(client)
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    def submit(self, count: int, batch: int) -> tuple[set[str], float]:
        """Submit so many tasks; the acknowledged ids, and how many there were in a second."""
        begin = time.perf_counter()
        for client in self._clients:
            _tell(client, [count // CLIENTS, batch, POOLS, NEED])
        found = set().union(*map(_acknowledged, self._clients))
        rate = len(found) / (time.perf_counter() - begin)
        if len(found) != count:
            raise AssertionError(f"{len(found)} of {count} submissions were acknowledged")
        self.acknowledged |= found
        return found, rate

    def submit_and_kill(self, count: int, batch: int) -> Killed:
        """Submit, kill the supervisor as soon as all are acknowledged, and compare the queue with the
        acknowledgements. The new tasks are cancelled at the end.
        """
        pid = self.scheduler.about()["pid"]
        new, rate = self.submit(count, batch)
        os.kill(pid, signal.SIGKILL)
        begin = time.perf_counter()
        listed = self.scheduler.list_queue()["tasks"]
        recovered_s = time.perf_counter() - begin
        if {task["task_id"] for task in listed} != self.acknowledged:
            raise AssertionError(f"{len(listed)} tasks of {len(self.acknowledged)} are queued")
        self.cancel(new)
        return Killed(rate, recovered_s)

    def cancel(self, task_ids: set[str]) -> float:
        """Cancel these tasks in one call; the seconds that it took."""
        begin = time.perf_counter()
        answer = self.scheduler.cancel_tasks(sorted(task_ids))
        took = time.perf_counter() - begin
        if not answer["success"]:
            raise AssertionError(answer["error"])
        self.acknowledged -= task_ids
        return took


@contextmanager
def _client(number: int) -> Iterator[subprocess.Popen[str]]:
    """A client process; it ends when its standard input is closed."""
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "benchmarks.queue_client", address, str(number)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        yield client
        client.communicate()


def _tell(client: subprocess.Popen[str], what: list[object]) -> None:
    print(json.dumps(what), file=client.stdin, flush=True)


def _acknowledged(client: subprocess.Popen[str]) -> set[str]:
    """The ids that a client prints until it is done."""
    found: set[str] = set()
    while client.stdout is not None:
        line = client.stdout.readline()
        if not line:
            raise AssertionError(f"a client ended with status {client.wait()}")
        ids = json.loads(line)
        if not ids:
            break
        found.update(ids)
    return found


@contextmanager
def own_home() -> Iterator[None]:
    """A folder of its own in which commands find the HTTP API."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, SCHEDULEMESH_HOME=folder):
        yield


def _listing(waiting: int, rounds: int) -> list[Row]:
    """The command that lists the queue, as a whole process, and processes that do less."""
    address = ray.get_runtime_context().gcs_address
    queue = ["-m", "schedulemesh", "queue", "--name", NAME, "--namespace", NAMESPACE]
    join = f"import ray; ray.init({address!r}, log_to_driver=False, logging_level='ERROR')"
    took = {
        "all": _processes_s([*queue, "--limit", "0"], waiting, rounds),
        "first": _processes_s([*queue, "--limit", "1"], POOLS, rounds),
        "over Ray": _processes_s([*queue, "--limit", "0", "--address", address], waiting, rounds),
        "join": _processes_s(["-c", join], 0, rounds),
        "help": _processes_s(["-m", "schedulemesh", "queue", "--help"], 0, rounds),
    }
    what = f"list {waiting:,} queued tasks, the whole process `schedulemesh queue --limit 0`"
    return [
        at_most(what, statistics.median(took["all"]), 0.3, " s", spread(took["all"], " s")),
        note("the same with `--limit 1`, a task of each pool", spread(took["first"], " s")),
        note("the same with all tasks, over Ray", spread(took["over Ray"], " s")),
        note("a process that joins the same Ray and ends", spread(took["join"], " s")),
        note("the process `schedulemesh queue --help`", spread(took["help"], " s")),
    ]


def _processes_s(arguments: list[str], tasks: int, rounds: int) -> list[float]:
    """Seconds of Python processes from their start to their end; each prints at least one line per task."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE)
        found.append(time.perf_counter() - begin)
        if done.stdout.count(b"\n") < tasks:
            raise AssertionError(done.stdout[-1000:])
    return found
