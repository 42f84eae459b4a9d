"""Arrays: what 100,000 members cost that wait as one entry in the queue."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc

from benchmarks.mesh import amounts
from benchmarks.rows import Row, at_most, spread
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.codec import decode_facts, encode_facts
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s

_NOW = 1_000.0


def task_arrays(members: int = 100_000, rounds: int = 21) -> list[Row]:
    """The marks of arrays."""
    submissions = [_submit_ms(members, ranges) for ranges in (1, 0) for _ in range(rounds)]
    whole, scattered = submissions[:rounds], submissions[rounds:]
    array, task = _pass_ms(members, rounds), _pass_ms(0, rounds)
    ratio = statistics.median(array) / statistics.median(task)
    return [
        at_most(
            f"submit an array of {members:,} members, decided, stored and read again",
            statistics.median(whole),
            50.0,
            " ms",
            spread(whole, ""),
        ),
        at_most(
            "the same with every second index, so that each is a range of its own",
            statistics.median(scattered),
            50.0,
            " ms",
            spread(scattered, ""),
        ),
        at_most(
            f"a pass over the queue with that array, relative to one with a task ({_ms(array)}, {_ms(task)})",
            ratio,
            1.25,
            " ×",
        ),
        at_most(f"memory of an array of {members:,} members that wait", _mib(members), 2.0, " MiB"),
    ]


def _ms(times: list[float]) -> str:
    return f"{statistics.median(times):.3f} ms"


def _engine(cpu: int) -> Engine:
    engine = Engine()
    report = NodeReport(node_id="n", total=amounts(cpu=cpu))
    engine.handle(s.ClusterObserved(nodes=(report,)), _NOW)
    engine.handle(s.PoolRequested(spec=PoolSpec(name="p", resources=amounts(cpu=cpu))), _NOW)
    return engine


def _submission(name: str, array: str) -> s.TaskSubmitted:
    return s.TaskSubmitted(
        agent=AgentSpec(
            name=name,
            pool_name="p",
            resources=amounts(cpu=1),
            class_key="c" * 64,
            payload=JobPayload(),
        ),
        task=TaskSpec(task_id=name, pool_name="p", run="run_driver", array=array),
        queue=True,
    )


def _written(members: int, ranges: int) -> str:
    """That many indices; as one range, or each as a range of its own."""
    return f"0-{members - 1}" if ranges else f"0-{2 * members - 1}:2"


def _submit_ms(members: int, ranges: int) -> float:
    """Milliseconds to decide on an array, and to encode and decode what is true then."""
    engine = _engine(1)
    submission = _submission(f"a{time.perf_counter_ns()}", _written(members, ranges))
    gc.collect()
    began = time.perf_counter()
    step = engine.handle(submission, _NOW)
    decode_facts(encode_facts(step.facts))
    return (time.perf_counter() - began) * 1e3


def _pass_ms(members: int, rounds: int) -> list[float]:
    """Milliseconds of ticks while an array, or with 0 members a single task, waits for a busy node."""
    engine = _engine(1)
    engine.handle(_submission("busy", ""), _NOW)
    engine.handle(_submission("waits", _written(members, 1) if members else ""), _NOW)
    times = []
    for number in range(20 * rounds):
        began = time.perf_counter()
        engine.handle(s.ClockTicked(), _NOW + number)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def _mib(members: int) -> float:
    """What an array adds to the memory of an engine."""
    engine = _engine(1)
    engine.handle(_submission("busy", ""), _NOW)
    gc.collect()
    tracemalloc.start()
    engine.handle(_submission("waits", _written(members, 1)), _NOW)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / 2**20
