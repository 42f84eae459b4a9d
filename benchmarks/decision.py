"""The preemption decision: its time by number of running tasks, and the memory per task."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Iterator

import psutil

from benchmarks.mesh import POOLS
from benchmarks.plain_loop import plain_loop
from benchmarks.rows import Row, at_most, note, timed_ms
from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.query import PreemptionQuery

#: 30 pools, 10 priorities and 2 values of the label that the policy's rules name.
CLASSES = 600
STAGES = ("pretrain", "rlhf")
POLICY = PreemptionPolicy(
    label_preemption_rules={"stage": {"rlhf": ("pretrain",)}}, protected_pools=("pool-7",)
)
#: The time of the first evaluation; every task started within the half hour before it.
NOW = 10_000.0
LIMIT = 10


def decision(
    small: int = 1_000, large: int = 1_000_000, queries: int = 301, loops: int = 3
) -> list[Row]:
    """Evaluate the same queries alternately against few and against many running tasks."""
    few = running(small)
    before = _resident()
    many = running(large)
    bytes_each = (_resident() - before) / large
    incoming = _incoming()
    first_query, now = next(incoming)
    few.evaluate(first_query, now)
    first = timed_ms(lambda: many.evaluate(first_query, now))
    times = [
        (timed_ms(lambda q=q: few.evaluate(*q)), timed_ms(lambda q=q: many.evaluate(*q)))
        for q in itertools.islice(incoming, queries)
    ]
    in_many = sorted(t for _, t in times)
    median = statistics.median(in_many)
    ratio = statistics.median(big / little for little, big in times)
    again = PreemptionQuery(priority=9.5, pool_name="pool-3", limit=LIMIT)
    now = NOW + queries
    many.evaluate(again, now)
    repeated = statistics.median(
        timed_ms(lambda: many.evaluate(again, now)) for _ in range(queries)
    )
    for _ in range(max(loops, 50)):
        _check(few, *next(incoming))
    loop_ms = statistics.median([_check(many, *next(incoming)) for _ in range(loops)])
    tasks = f"{large:,} running tasks"
    return [
        at_most(
            f"evaluate against {tasks} in {len(many.state.running.classes)} classes, "
            f"limit {LIMIT}, median",
            median,
            1.0,
            " ms",
            f"99th percentile {in_many[len(in_many) * 99 // 100]:.2g} ms",
        ),
        at_most(
            f"the same, relative to its time at {small:,} tasks",
            ratio,
            3.0,
            " ×",
            f"{statistics.median(t for t, _ in times):.2g} ms there",
        ),
        at_most(
            f"resident memory per task, {tasks}", round(bytes_each), 1024, " B", "labels included"
        ),
        note("a plain loop over the same tasks", f"{loop_ms:,.0f} ms, the same results"),
        note("evaluate again for an incoming task like the previous one", f"{repeated:.2g} ms"),
        note("the very first evaluation, which reorders a third of the tasks", f"{first:,.0f} ms"),
    ]


def running(tasks: int) -> Engine:
    """An engine with registered tasks, each with a label of its own; a third of them has time
    remaining, a third is overdue, a third has no known duration.
    """
    rng = random.Random(7)
    engine = Engine()
    engine.handle(s.PolicyChangeRequested(policy=POLICY, client="benchmark", changes=()), 0.0)
    for i in range(tasks):
        kind = i % CLASSES
        elapsed = 1800.0 * (1 - i / tasks)
        durations = (elapsed + 36_000.0 * rng.random(), elapsed * rng.random(), None)
        task = TaskSpec(
            task_id=f"task-{i}",
            pool_name=f"pool-{kind % POOLS}",
            priority=float(kind // POOLS % 10),
            labels={"job_id": f"job-{i}", "stage": STAGES[kind // (POOLS * 10)]},
            estimated_duration=durations[(i + i // CLASSES) % 3],
        )
        engine.handle(s.TaskAnnounced(task=task, agent_name=f"agent-{i}"), NOW - elapsed)
    return engine


def _incoming() -> Iterator[tuple[PreemptionQuery, float]]:
    """Incoming tasks and their times, all different, a hundredth of a second apart."""
    rng = random.Random(11)
    now = NOW
    while True:
        now += 0.01
        stage = rng.choice((*STAGES, None))
        query = PreemptionQuery(
            priority=rng.uniform(0.0, 15.0),
            pool_name=f"pool-{rng.randrange(POOLS)}",
            labels={} if stage is None else {"stage": stage},
            limit=LIMIT,
        )
        yield query, now


def _check(engine: Engine, query: PreemptionQuery, now: float) -> float:
    """Compare the engine's result with the plain loop's; returns the time of the loop in ms."""
    start = time.perf_counter()
    expected_candidates = plain_loop(engine.state.running.by_id.values(), POLICY, query, now)
    took = (time.perf_counter() - start) * 1e3
    given = engine.evaluate(query, now)
    expected = [
        (f.task_id, -f.negative_score, f.priority_delta, f.effective_delta, f.remaining, f.reason)
        for f in expected_candidates
    ]
    found = [
        (
            c.task_id,
            c.preempt_score,
            c.priority_delta,
            c.effective_delta,
            c.remaining_time,
            c.reason,
        )
        for c in given.candidates
    ]
    if found != expected or given.should_preempt != bool(expected):
        raise AssertionError(f"engine and plain loop differ for {query}: {found} {expected}")
    return took


def _resident() -> int:
    """Resident memory of this process in bytes."""
    gc.collect()
    return psutil.Process().memory_info().rss
