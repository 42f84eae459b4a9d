"""Data dispatch: sharding a large tensor in one process, and planning between large groups."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

from benchmarks.rows import Row, at_most, note, timed_ms
from schedulemesh.dispatch import ParallelLayout, Plan, Shard, Sharding, Stage, plan, shard

GIB = 1 << 30
RANKS = 1024


def dispatch(moves: int | None = None, ranks: Sequence[int] = (8, 64, RANKS)) -> list[Row]:
    """Planning (the first ``moves`` of the list; None: all), and sharding over each number of ranks."""
    return [*_planning(moves), *_sharding(ranks)]


def _sharding(counts: Sequence[int]) -> list[Row]:
    rows = []
    for library, tensor in _tensors():
        shard(tensor, Sharding.of(ParallelLayout.of(dp=2), dp=0))
        for ranks in counts:
            sharding = Sharding.of(ParallelLayout.of(dp=ranks), dp=0)
            first = timed_ms(lambda s=sharding, t=tensor: shard(t, s))
            times = [timed_ms(lambda s=sharding, t=tensor: shard(t, s)) for _ in range(51)]
            what = f"shard 1 GiB ({library}) over {ranks:,} ranks, as views, median of 51"
            took, detail = statistics.median(times), f"the first {first:.2g} ms"
            rows.append(at_most(what, took, 1.0, " ms", detail))
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


def _planning(moves: int | None) -> list[Row]:
    rows = []
    for number, (what, source, destination) in enumerate(itertools.islice(_moves(), moves)):
        made: list[Plan] = []
        ask = _asked(made, source, destination, 8192 + RANKS * number)
        took = timed_ms(ask)
        cached = statistics.median(timed_ms(ask) for _ in range(51))
        rank = RANKS - 1
        made[0].fetches(0)
        fetch = timed_ms(lambda p=made[0], r=rank: p.fetches(r))
        pieces = len(made[0].fetches(rank))
        rows += [
            at_most(f"plan 1,024 → 1,024: {what}", took, 500.0, " ms", _moved(made[0])),
            at_most("  the same from the cache, median of 51", cached, 0.1, " ms"),
            note("  computing what one rank fetches", f"{fetch:.3g} ms ({pieces:,} boxes)"),
        ]
    return rows


def _asked(made, source: Sharding, destination: Sharding, size: int) -> Callable[[], None]:
    """Computes the plan of a 16-bit tensor; a unique size makes sure that it is not cached."""
    return lambda: made.append(plan(source, destination, (size, size), itemsize=2))


def _moves():
    """Moves that are typical for real jobs, and the two most expensive ones, which are all-to-all."""
    rollout = ParallelLayout.of(tp=8, dp=128)
    train = ParallelLayout.of(tp=8, cp=2, dp=8, pp=8)
    flat = ParallelLayout.of(dp=RANKS)
    pairs = ParallelLayout.of(tp=RANKS // 2, dp=2)
    zigzag = Shard(1, zigzag=True)
    yield (
        "a weight of one stage, train → rollout",
        Sharding.of(train, tp=0, pp=Stage(3)),
        Sharding.of(rollout, tp=1),
    )
    yield "FSDP → tp=8, dp=128", Sharding.of(flat, dp=0), Sharding.of(rollout, tp=0)
    yield (
        "a batch, dp=1024 → dp=8, cp=2 zigzag",
        Sharding.of(flat, dp=0),
        Sharding.of(train, dp=0, cp=zigzag),
    )
    yield "all to all (1,048,576 transfers)", Sharding.of(flat, dp=0), Sharding.of(flat, dp=1)
    yield "all to all from two replicas", Sharding.of(pairs, tp=0), Sharding.of(flat, dp=1)


def _moved(made: Plan) -> str:
    return f"{made.bytes_moved / GIB:.3g} GiB to move"
