"""The label rules of a policy: the cost of applying 10,000 of them."""

from __future__ import annotations

import random
import statistics
import time

from benchmarks.rows import Row, at_most
from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.engine.state.preemption_rules import PreemptionRules

MARK_MS = 50.0

Rules = dict[str, tuple[str, ...]]


def rules(number: int = 10_000, rounds: int = 7) -> list[Row]:
    """Validate a policy with about this number of rules and compute its ranks, each time with new values."""
    rows = []
    for what, build in _SHAPES.items():
        times = [_put_in_force(build(number, f"{what}-{i}-")) for i in range(rounds)]
        rows.append(
            at_most(
                f"apply a policy with {number:,} label rules: {what}",
                statistics.median(times),
                MARK_MS,
                " ms",
                f"max {max(times):.2g} ms",
            )
        )
    return rows


def _put_in_force(of_key: Rules) -> float:
    """The CPU time of applying the rules in milliseconds; nothing in it waits."""
    start = time.process_time()
    PreemptionRules(PreemptionPolicy(label_preemption_rules={"tier": of_key}))
    return (time.process_time() - start) * 1e3


def _ordered(number: int, name: str) -> Rules:
    """A total order: every value above every later one."""
    values = [f"{name}{i}" for i in range(1 + round((2 * number) ** 0.5))]
    return {high: tuple(values[i + 1 :]) for i, high in enumerate(values[:-1])}


def _chain(number: int, name: str) -> Rules:
    return {f"{name}{i}": (f"{name}{i + 1}",) for i in range(number)}


def _chance(values: int, number: int, name: str) -> Rules:
    rng = random.Random(name)
    found: dict[str, set[str]] = {}
    for _ in range(number):
        high, low = sorted(rng.sample(range(values), 2))
        found.setdefault(f"{name}{high}", set()).add(f"{name}{low}")
    return {high: tuple(sorted(lows)) for high, lows in found.items()}


_SHAPES = {
    "totally ordered values": _ordered,
    "one chain": _chain,
    "random rules over 300 values": lambda number, name: _chance(300, number, name),
    "random rules over 3,000 values": lambda number, name: _chance(3_000, number, name),
}
