"""What calls and starts cost, relative to the least that they could cost on the same machine.

Each row measures its floor and this program alternately. What others take for the same was measured once, on
the machine that the page names, and is not measured again.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.on_ray_groups import handed_over_times, start_times
from benchmarks.on_ray_leases import create_pools, lease_times
from benchmarks.on_ray_queue import own_home
from benchmarks.on_ray_requests import (
    read_rates,
    scheduler_and_empty_actor,
    submission_rates,
    waiting_tasks,
)
from benchmarks.pairs import bare_ray, own_ray
from benchmarks.rows import Row, timed_ms
from schedulemesh.core import RayScheduler
from schedulemesh.store.sql import SqlJournal

#: Tasks in a call of ``submit_many``, bytes of the facts of one submission, commits in a round.
_BATCH, _RECORD_BYTES, _COMMITS = 100, 1200, 200

Pairs = Sequence[tuple[float, float]]


def floor(rounds: int = 7, calls: int = 300, waiting: int = 16_000, pairs: int = 9) -> list[Row]:
    """Every row. It takes some minutes, and an idle machine."""
    return [
        commits(rounds),
        *_requests(rounds, calls, waiting),
        *_groups(pairs),
    ]


def commits(rounds: int, count: int = _COMMITS) -> Row:
    """Processor time of durable commits in the journal, and of the same insertion by sqlite3 alone."""
    with tempfile.TemporaryDirectory() as folder:
        journal = SqlJournal(Path(folder) / "ours.sqlite")
        journal.begin()
        plain = sqlite3.connect(Path(folder) / "plain.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE commits (number INTEGER PRIMARY KEY, crc INTEGER, facts BLOB)",
        ):
            plain.execute(statement)
        found = []
        for _ in range(rounds + 1):
            mine = _processor_ms(lambda: journal.append(os.urandom(_RECORD_BYTES), {}), count)
            other = _processor_ms(lambda: _insert(plain, os.urandom(_RECORD_BYTES)), count)
            found.append((mine, other))
        plain.close()
        journal.close()
    return _times(
        "durable commit of a submission, processor time / `sqlite3` alone", found[1:], None
    )


def _insert(plain: sqlite3.Connection, facts: bytes) -> None:
    plain.execute("BEGIN IMMEDIATE")
    plain.execute("INSERT INTO commits (crc, facts) VALUES (?, ?)", (zlib.crc32(facts), facts))
    plain.execute("COMMIT")


def _processor_ms(call: Callable[[], object], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) * 1e3 / count


def _requests(rounds: int, calls: int, waiting: int) -> list[Row]:
    """What one scheduler with a long queue answers, and how soon after a SIGKILL."""
    with own_home(), bare_ray(), ExitStack() as opened:
        scheduler = opened.enter_context(scheduler_and_empty_actor())
        submitting = "`submit(queue=True)` one after the other / empty actor call"
        return [
            _rates("HTTP read / bare Starlette route", read_rates(calls, rounds), 0.3),
            _rates(
                f"{submitting}, 1 client",
                submission_rates(calls, rounds, 1),
                0.7,
                "Slurm 181 /s",
            ),
            _rates(f"{submitting}, 8 clients", submission_rates(calls // 2, rounds, 8), 0.7),
            _times(
                f"SIGKILL → {waiting:,} queued listed / process with `import ray`",
                list(_recoveries(scheduler, rounds, waiting)),
                2.0,
                "Slurm 530 ms, 239 of 240 acknowledged jobs lost",
            ),
        ]


def _recoveries(
    scheduler: RayScheduler, rounds: int, waiting: int
) -> Iterator[tuple[float, float]]:
    """From SIGKILL until all that waits is listed, and a process that imports Ray: milliseconds."""
    queued = len(scheduler.list_queue()["tasks"])
    while queued < waiting:
        count = min(_BATCH, waiting - queued)
        results = scheduler.submit_many(waiting_tasks(queued, count))["results"]
        queued += sum(result["state"] == "queued" for result in results)
    importing = [sys.executable, "-c", "import ray"]
    for _ in range(rounds):
        other = timed_ms(lambda: subprocess.run(importing, check=True))
        os.kill(scheduler.about()["pid"], signal.SIGKILL)
        mine = timed_ms(lambda: _check_listed(scheduler, waiting))
        yield mine, other


def _check_listed(scheduler: RayScheduler, waiting: int) -> None:
    listed = len(scheduler.list_queue()["tasks"])
    if listed != waiting:
        raise AssertionError(f"{listed} of {waiting} acknowledged tasks are queued")


def _groups(pairs: int) -> list[Row]:
    """Starts with warm hosts, and leases."""
    lease = "/ `placement_group()` + `ready()`"
    with own_ray() as scheduler:
        starts = start_times(scheduler, pairs)
        handed_over = handed_over_times(scheduler, pairs)
    with own_ray() as scheduler:
        create_pools(scheduler)
        free = lease_times(scheduler, "kept", pairs)
        new = lease_times(scheduler, "plain", pairs)
    return [
        _times("warm start / cold", starts, 0.02),
        _times("warm hand-over / `ray.kill` + create", handed_over, 0.05),
        _times(f"lease from a free group {lease}", free, 1.5),
        _times(f"lease in a new group {lease}", new, 2.2),
    ]


def _rates(what: str, found: Pairs, mark: float, peer: str = "") -> Row:
    """Rates of this program and of its floor, whose ratio is to be at least the mark."""
    return _row(what, found, f"≥ {mark:g}", lambda ratio: ratio >= mark, " /s", peer)


def _times(what: str, found: Pairs, mark: float | None, peer: str = "") -> Row:
    """Times of this program and of its floor, whose ratio is to be at most the mark; None: there is none."""
    if mark is None:
        return _row(what, found, "", lambda _: None, " ms", peer)
    return _row(what, found, f"≤ {mark:g}", lambda ratio: ratio <= mark, " ms", peer)


def _row(
    what: str, found: Pairs, mark: str, meets: Callable[[float], bool | None], unit: str, peer: str
) -> Row:
    ratios = [mine / other for mine, other in found]
    ratio = statistics.median(ratios)
    mine, other = (statistics.median(side) for side in zip(*found, strict=True))
    return {
        "what": what,
        "target": mark,
        "measured": f"{ratio:.2g} ({min(ratios):.2g}-{max(ratios):.2g})",
        "met": meets(ratio),
        "floor": _amount(other) + unit,
        "peer": peer,
        "ours": _amount(mine) + unit,
    }


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
