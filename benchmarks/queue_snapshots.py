"""Snapshots of a long queue: to restore one, its memory, and how long decisions stop while one is made."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import tempfile
import time
from hashlib import sha256
from pathlib import Path

import msgspec
import psutil

from benchmarks.mesh import amounts, opening, submitted
from benchmarks.rows import Row, at_most, note
from schedulemesh.core.backend.process_tuning import collect_garbage_rarely, switch_threads_often
from schedulemesh.engine.codec import decode_chunk, encode_chunk
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.queue import Queue
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.snapshot import parts, take_snapshot
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.recovery import Stored
from schedulemesh.store.sql import SqlJournal

OWNERS = 50
#: Arguments that are stored at once.
_BATCH = 10_000


def queue_snapshots(restored: int = 1_000_000, queued: int = 500_000) -> list[Row]:
    """Each in a new process, so that memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        chunks = pool.apply(_chunks, (restored,))
        took, decoding, each = pool.apply(_restoring, (chunks,))
        fewer = pool.apply(_chunks, (queued,))
        stop, whole = pool.apply(_stop, (fewer, 0))
        own = pool.apply(_chunks, (queued, True))
        stop_own, whole_own = pool.apply(_stop, (own, queued))
    what = f"restore a snapshot of {restored:,} queued tasks"
    size = sum(map(len, chunks)) / restored
    return [
        at_most(f"{what}, processor time", took, 2.5, " s"),
        note(f"{what}, relative to decoding it", f"{took / decoding:.3g} ×, {decoding:.3g} s"),
        at_most(f"{what}, memory of each", round(each), 700, " B", f"{size:.0f} B stored"),
        _stops(queued, "", stop, whole),
        _stops(queued, " with arguments of their own", stop_own, whole_own),
    ]


def _stops(queued: int, which: str, stop_s: float, whole_s: float) -> Row:
    what = f"longest stop of decisions by a snapshot of {queued:,} queued tasks{which}"
    return at_most(
        f"{what}, processor time", stop_s * 1e3, 10.0, " ms", f"it takes {whole_s:.3g} s"
    )


def _chunks(count: int, own_arguments: bool = False) -> list[bytes]:
    """A snapshot with so many tasks in the queue, each with an owner, a class and a duration, and maybe with
    arguments of its own.
    """
    engine = Engine()
    for stimulus in opening(1):
        engine.handle(stimulus, 1.0)
    by_id = engine.state.queue.by_id
    for number in range(count):
        submission = _submission(number)
        if own_arguments:
            agent = msgspec.structs.replace(submission.agent, arguments_key=_key(number))
            submission = msgspec.structs.replace(submission, agent=agent)
        task = QueuedTask(submission=submission, queued_at=number / 100, number=number + 1)
        by_id[task.task_id] = task
    return [encode_chunk(part) for part in parts(take_snapshot(engine.state))]


def _key(number: int) -> str:
    """The key of the arguments of a task."""
    return sha256(number.to_bytes(8, "big")).hexdigest()


def _submission(number: int) -> TaskSubmitted:
    duration = 60.0 * (1 + number % 100)
    submission = submitted(number, amounts(cpu=1, gpu=1 + number % 4), 5.0, duration)
    task = msgspec.structs.replace(submission.task, owner=f"user-{number % OWNERS}")
    return msgspec.structs.replace(submission, request_id=None, task=task, queue=True)


def _restoring(chunks: list[bytes]) -> tuple[float, float, float]:
    """Seconds of processor time to restore the state, and to decode it alone; bytes of memory for a task."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    began = time.process_time()
    queue: Queue = Stored(parts=chunks).fold().queue
    took = time.process_time() - began
    gc.collect()
    each = (psutil.Process().memory_info().rss - before) / len(queue)
    began = time.process_time()
    for chunk in chunks:
        decode_chunk(chunk)
    return took, time.process_time() - began, each


def _stop(chunks: list[bytes], arguments: int) -> tuple[float, float]:
    """The longest time between two turns of the event loop while a snapshot is taken, and the time until it
    is stored; in seconds. ``arguments``: of how many tasks the arguments are stored.
    """
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_snapshot(Path(folder) / "journal.sqlite", chunks, arguments))


async def _snapshot(path: Path, chunks: list[bytes], arguments: int) -> tuple[float, float]:
    journal = SqlJournal(path)
    journal.begin()
    for first in range(0, arguments, _BATCH):
        numbers = range(first, min(first + _BATCH, arguments))
        journal.append(b"", {_key(number): b"arguments" for number in numbers})
    journal.compact(chunks, journal.last, frozenset())
    journal.close()
    reactor = await Reactor.recover(SqlJournal(path))
    collect_garbage_rarely()
    switch_threads_often()
    began, longest = time.perf_counter(), 0.0
    taking = asyncio.ensure_future(reactor._snapshots.take())  # noqa: SLF001  # it is taken now
    turn = time.process_time()
    while not taking.done():
        await asyncio.sleep(0.0005)
        longest, turn = max(longest, time.process_time() - turn), time.process_time()
    whole = time.perf_counter() - began
    await reactor.close(destroy=False)
    return longest, whole
