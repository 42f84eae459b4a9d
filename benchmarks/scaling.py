"""Where one engine ends: cost and memory of larger and larger clusters with full queues, per doubling."""

from __future__ import annotations

import gc
import math
import multiprocessing
import statistics
import time
from collections import deque

import msgspec
import psutil

from benchmarks.mesh import POOLS, amounts, finished, gone, mesh, reported, start, submitted
from benchmarks.rows import Row, at_most, note, timed_ms
from schedulemesh.engine.codec import decode_chunk, encode_chunk
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.state.snapshot import parts, restored, take_snapshot

GPUS = 8
#: The sizes of queued tasks, in GPUs.
SIZES = (1, 1, 1, 2, 4, 8)
#: Tasks in the queue for each node.
QUEUED = 100


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one size of cluster costs."""

    nodes: int
    starts: float
    joins: float
    turnovers: float
    tick_ms: float
    explain_ms: float
    memory_mb: float
    snapshot_mb: float
    snapshot_s: float
    restore_s: float


def scaling(
    nodes: tuple[int, ...] = (1_250, 2_500, 5_000, 10_000), turnovers: int = 2_000
) -> list[Row]:
    """Each size in a new process, so that memory is its own."""
    found = []
    for size in nodes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(pool.apply(measured, (size, turnovers)))
    return [row for one in found for row in _rows(one)] + _growth(found)


def measured(nodes: int, turnovers: int) -> Measured:
    """Fill the cluster and its queue, then end tasks, whose places queued ones take."""
    engine, running = mesh(nodes), deque[tuple[int, int]]()
    one = amounts(cpu=1, gpu=1)
    count = nodes * GPUS
    began = time.perf_counter()
    for number in range(count):
        running.append((number, start(engine, submitted(number, one, 5.0), 1.0)))
    starts = count / (time.perf_counter() - began)
    joins = _queue(engine, count, nodes * QUEUED)
    gc.collect()
    memory = psutil.Process().memory_info().rss / 2**20
    ticks = [timed_ms(lambda k=k: engine.handle(s.ClockTicked(), 2.0 + k)) for k in range(7)]
    explained = [
        timed_ms(lambda n=n: engine.explain(f"task-{count + n * 7}", 9.0)) for n in range(15)
    ]
    rate = _turn_over(engine, running, turnovers)
    began = time.perf_counter()
    chunks = [encode_chunk(part) for part in parts(take_snapshot(engine.state), 1_000)]
    written = time.perf_counter() - began
    began = time.perf_counter()
    state = restored(decode_chunk(chunk) for chunk in chunks)
    restore = time.perf_counter() - began
    if len(state.queue.by_id) != len(engine.state.queue.by_id):
        raise AssertionError("the snapshot lacks queued tasks")
    return Measured(
        nodes=nodes,
        starts=starts,
        joins=joins,
        turnovers=rate,
        tick_ms=statistics.median(ticks),
        explain_ms=statistics.median(explained),
        memory_mb=memory,
        snapshot_mb=sum(map(len, chunks)) / 2**20,
        snapshot_s=written,
        restore_s=restore,
    )


def _queue(engine: Engine, first: int, count: int) -> float:
    """Put tasks into the queue; how many a second."""
    began = time.perf_counter()
    for number in range(first, first + count):
        need = amounts(cpu=1, gpu=SIZES[number // POOLS % len(SIZES)])
        given = submitted(number, need, 5.0)
        engine.handle(msgspec.structs.replace(given, request_id=None, queue=True), 1.0)
    if len(engine.state.queue.by_id) != count:
        raise AssertionError(f"{len(engine.state.queue.by_id)} of {count} tasks wait")
    return count / (time.perf_counter() - began)


def _turn_over(engine: Engine, running: deque[tuple[int, int]], count: int) -> float:
    """Ends of tasks per second, each with the start of the queued task that takes its place."""
    began = time.perf_counter()
    started = 0
    for _ in range(count):
        number, incarnation = running.popleft()
        engine.handle(finished(number), 20.0)
        step = engine.handle(gone(number, incarnation), 20.0)
        if step.instructions and isinstance(order := step.instructions[0], StartAgent):
            report = reported(engine, step)
            engine.handle(report, 20.0)
            running.append((int(order.agent.name.rpartition("-")[2]), report.incarnation))
            started += 1
    if not started:
        raise AssertionError("no queued task was started")
    return count / (time.perf_counter() - began)


def _rows(one: Measured) -> list[Row]:
    tasks, queued = one.nodes * GPUS, one.nodes * QUEUED
    what = f"{one.nodes:,} nodes, {tasks:,} running, {queued:,} queued"
    return [
        note(f"{what}: starts; queued", f"{one.starts:,.0f} /s; {one.joins:,.0f} /s"),
        note("  an end and the start in its place", f"{one.turnovers:,.0f} /s"),
        note("  a tick; explain", f"{one.tick_ms:.3g} ms; {one.explain_ms:.3g} ms"),
        note("  resident memory", f"{one.memory_mb:,.0f} MB"),
        note(
            "  snapshot: size, to write, to restore",
            f"{one.snapshot_mb:,.0f} MB, {one.snapshot_s:.3g} s, {one.restore_s:.3g} s",
        ),
    ]


def _growth(found: list[Measured]) -> list[Row]:
    """The growth per doubling of the cluster, over all sizes."""
    first, last = found[0], found[-1]
    doublings = math.log2(last.nodes / first.nodes)
    figures = {
        "a start": first.starts / last.starts,
        "a task that joins the queue": first.joins / last.joins,
        "an end and a start": first.turnovers / last.turnovers,
        "a tick": last.tick_ms / first.tick_ms,
        "explain": last.explain_ms / first.explain_ms,
        "memory": last.memory_mb / first.memory_mb,
        "restoring a snapshot": last.restore_s / first.restore_s,
    }
    shown = ", ".join(f"{what} {ratio ** (1 / doublings):.2f} ×" for what, ratio in figures.items())
    turnover = figures["an end and a start"] ** (1 / doublings)
    return [
        at_most("growth per doubling of an end and the start in its place", turnover, 1.2, " ×"),
        note("growth per doubling of the cost of the others", shown),
    ]
