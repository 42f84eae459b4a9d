"""Explanations and verdicts: 100,000 tasks that wait and 100,000 that run; 1,000 full nodes."""

from __future__ import annotations

import gc
import statistics

import msgspec

from benchmarks.mesh import POOLS, amounts, mesh, start, submitted
from benchmarks.rows import Row, at_most, note, timed_ms
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.messages.outcomes import Queued, Refused

MARK_MS, VERDICT_MS = 10.0, 1.0
#: Nodes of a small cluster; the number of the task that waits there, and for how many GPUs.
SMALL, EVICTS, EVICTED = 300, 9_000_000, 6
#: CPUs of a node, see ``benchmarks.mesh``.
_CPUS = 64


def explain(tasks: int = 100_000, nodes: int = 1_000, calls: int = 51) -> list[Row]:
    """Explain waiting and running tasks, and refuse what does not fit."""
    engine = crowded(tasks, tasks, nodes)
    every = tasks // calls
    waiting = [explained_ms(engine, tasks + i * every, "queued") for i in range(calls)]
    running = [explained_ms(engine, i * every, "running") for i in range(calls)]
    unknown = [unknown_ms(engine) for _ in range(calls)]
    del engine
    small = full_of_small_tasks(SMALL)
    evictions = [explained_ms(small, EVICTS, "queued") for _ in range(calls)]
    del small
    full = crowded(8 * nodes, 0, nodes)
    dry_runs = [refused_ms(full, number, _CPUS, dry_run=True) for number in range(calls)]
    what = f"{tasks:,} tasks waiting and {tasks:,} running on {nodes:,} full nodes"
    return [
        _row(f"explain one that waits, of {what}", waiting, MARK_MS),
        _row("explain one that runs", running, MARK_MS),
        _row(
            f"explain one that waits, and for which {EVICTED} of 8 tasks on one of {SMALL} nodes could be "
            "evicted with a higher priority",
            evictions,
            MARK_MS,
        ),
        note("refuse an unknown id, with the nearest ones", f"{statistics.median(unknown):.2g} ms"),
        _row(
            f"verdict on {nodes:,} full nodes: can never fit",
            [refused_ms(full, calls + number, 2 * _CPUS) for number in range(calls)],
            VERDICT_MS,
        ),
        _row(
            f"verdict on {nodes:,} full nodes: does not fit now",
            [refused_ms(full, 2 * calls + number, _CPUS) for number in range(calls)],
            VERDICT_MS,
        ),
        note(
            "the same as a dry run, which says when it could start",
            f"{statistics.median(dry_runs):.2g} ms",
        ),
    ]


def crowded(running: int, waiting: int, nodes: int) -> Engine:
    """An engine whose nodes are full of running tasks, with others that wait; in 10 and 12 classes a pool."""
    engine = mesh(nodes)
    part = _CPUS * nodes / running
    for number in range(running):
        priority, duration = 5.0 + number % 10, 600.0 + number % 997
        start(engine, submitted(number, amounts(cpu=part), priority, duration), 0.0)
    for number in range(running, running + waiting):
        need = amounts(cpu=part * (1 + number % 3))
        submission = submitted(number, need, 1.0 + number % 4)
        waits = msgspec.structs.replace(submission, queue=True)
        outcome = engine.handle(waits, 1.0).outcome
        if not isinstance(outcome, Queued) or not outcome.position:
            raise AssertionError(f"the task was to wait: {outcome}")
    gc.collect()
    return engine


def full_of_small_tasks(nodes: int) -> Engine:
    """An engine whose nodes have 8 tasks of a GPU each, of 10 priorities and in 3 pools, beside one that
    waits for several GPUs of a node and has the lowest priority.
    """
    engine = mesh(nodes)
    for number in range(8 * nodes):
        # Tasks whose numbers differ by a multiple of the pools are in the same one.
        task = POOLS * number + number % 3
        start(engine, submitted(task, amounts(gpu=1), 2.0 + number * 7 % 10), 0.0)
    waits = msgspec.structs.replace(submitted(EVICTS, amounts(gpu=EVICTED), 1.0), queue=True)
    engine.handle(waits, 1.0)
    gc.collect()
    return engine


def explained_ms(engine: Engine, number: int, state: str) -> float:
    """The time of one explanation, of a task in this state."""
    found: list[object] = []
    took = timed_ms(lambda: found.append(engine.explain(f"task-{number}", 60.0)))
    if not isinstance(found[0], Explanation) or found[0].state != state:
        raise AssertionError(f"the task was to be {state}: {found[0]}")
    return took


def unknown_ms(engine: Engine) -> float:
    """The time of the refusal of an unknown id, which names the nearest ones."""
    return timed_ms(lambda: engine.explain("task-1-9", 60.0))


def refused_ms(engine: Engine, number: int, cpu: float, *, dry_run: bool = False) -> float:
    """The time of the refusal of a task that may evict nobody, so that no victims are searched. ``number``:
    another one each time, because the answer to a repeated request is remembered.
    """
    submission = submitted(10_000_000 + number, amounts(cpu=cpu), 1.0)
    submission = msgspec.structs.replace(submission, dry_run=dry_run, may_preempt=False)
    found: list[object] = []
    took = timed_ms(lambda: found.append(engine.handle(submission, 60.0).outcome))
    refused = isinstance(found[0], Refused)
    if not refused:
        raise AssertionError(f"the task was to be refused: {found[0]}")
    return took


def _row(what: str, times: list[float], mark: float) -> Row:
    return at_most(what, statistics.median(times), mark, " ms", f"max {max(times):.2g} ms")
