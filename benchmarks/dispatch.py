"""Data dispatch: sharding a large tensor in process, and planning between large groups.

``python -m benchmarks.dispatch`` prints the table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from schedulemesh.dispatch import ParallelLayout, Plan, Shard, Sharding, Stage, plan, shard

GIB = 1 << 30
RANKS = 1024


def run() -> list[dict[str, str]]:
    """Every figure of dispatch."""
    return [*_planning(), *_sharding()]


def timed_ms(call: Callable[[], object]) -> float:
    """How long a call takes, in milliseconds."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def row(what: str, mark_ms: float | None, measured_ms: float, detail: str = "") -> dict[str, str]:
    """A line of the table; without a mark it is for information."""
    measured = f"{measured_ms:.3g} ms" + (f" ({detail})" if detail else "")
    return {
        "what": what,
        "mark": "" if mark_ms is None else f"≤ {mark_ms:g} ms",
        "measured": measured,
    }


def print_table(rows: list[dict[str, str]]) -> None:
    """The rows as an aligned table."""
    widths = [max(len(line[key]) for line in rows) for key in rows[0]]
    for line in rows:
        print("  ".join(c.ljust(w) for c, w in zip(line.values(), widths, strict=True)).rstrip())


def _sharding() -> list[dict[str, str]]:
    rows = []
    for library, tensor in _tensors():
        shard(tensor, Sharding.of(ParallelLayout.of(dp=2), dp=0))
        for ranks in (8, 64, RANKS):
            sharding = Sharding.of(ParallelLayout.of(dp=ranks), dp=0)
            first = timed_ms(lambda s=sharding, t=tensor: shard(t, s))
            times = [timed_ms(lambda s=sharding, t=tensor: shard(t, s)) for _ in range(51)]
            what = f"shard 1 GiB ({library}) over {ranks:,} ranks, as views, median of 51"
            took = statistics.median(times)
            mark = None if ranks == RANKS else 1.0
            rows.append(row(what, mark, took, f"the first {first:.2g} ms"))
    return rows


def _tensors():
    """A float32 tensor of 1 GiB of each library that is installed."""
    shape = (RANKS * 64, GIB // 4 // RANKS // 64)
    for name, make in (("NumPy", _numpy), ("torch", _torch)):
        try:
            yield name, make(shape)
        except ImportError:
            continue


def _numpy(shape):
    import numpy as np

    return np.zeros(shape, np.float32)


def _torch(shape):
    import torch

    return torch.zeros(shape)


def _planning() -> list[dict[str, str]]:
    rows = []
    for number, (what, source, destination) in enumerate(_moves()):
        made: list[Plan] = []
        ask = _asked(made, source, destination, 8192 + RANKS * number)
        took = timed_ms(ask)
        cached = statistics.median(timed_ms(ask) for _ in range(51))
        rank = RANKS - 1
        made[0].fetches(0)
        fetch = timed_ms(lambda p=made[0], r=rank: p.fetches(r))
        pieces = len(made[0].fetches(rank))
        rows += [
            row(f"plan 1,024 → 1,024: {what}", 1000.0, took, _moved(made[0])),
            row("  the same from the cache, median of 51", 1.0, cached),
            row("  what one rank fetches, worked out", None, fetch, f"{pieces:,} boxes"),
        ]
    return rows


def _asked(made, source: Sharding, destination: Sharding, size: int) -> Callable[[], None]:
    """Asks for the plan of a 16-bit tensor; a size of its own keeps what was worked out before away."""
    return lambda: made.append(plan(source, destination, (size, size), itemsize=2))


def _moves():
    """Moves that real jobs make, and the two that cost most: every rank has something for every rank."""
    rollout = ParallelLayout.of(tp=8, dp=128)
    train = ParallelLayout.of(tp=8, cp=2, dp=8, pp=8)
    flat = ParallelLayout.of(dp=RANKS)
    pairs = ParallelLayout.of(tp=RANKS // 2, dp=2)
    zigzag = Shard(1, zigzag=True)
    yield "a weight of one stage, train → rollout", Sharding.of(
        train, tp=0, pp=Stage(3)
    ), Sharding.of(rollout, tp=1)
    yield "FSDP → tp=8, dp=128", Sharding.of(flat, dp=0), Sharding.of(rollout, tp=0)
    yield "a batch, dp=1024 → dp=8, cp=2 zigzag", Sharding.of(flat, dp=0), Sharding.of(
        train, dp=0, cp=zigzag
    )
    yield "all to all (1,048,576 transfers)", Sharding.of(flat, dp=0), Sharding.of(flat, dp=1)
    yield "all to all from two replicas", Sharding.of(pairs, tp=0), Sharding.of(flat, dp=1)


def _moved(made: Plan) -> str:
    return f"{made.bytes_moved / GIB:.3g} GiB to move"


if __name__ == "__main__":
    print_table(run())
