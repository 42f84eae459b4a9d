"""Owners of pools: what it costs to limit them, and to serve them by what they have used."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import msgspec

from benchmarks.mesh import POOLS, amounts, submitted
from benchmarks.queueing import drained, in_each_way
from benchmarks.rows import Row, at_least, note, spread
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.messages import stimuli as s

#: Owners of each pool, of whom the limits hold back all: they permit less than the quota together.
OWNERS, GPUS, MARK = 40, 8, 0.9
WAYS = {
    "no limits": {},
    "limits that hold nobody back": {"owner_limits": {"default": {"gpu": 1_000, "queued": 10_000}}},
    "limits that hold back all": {"owner_limits": {"default": {"gpu": 1}}},
    "owner_order fair": {"owner_order": "fair"},
}


def owners(nodes: int = 30, tasks: int = 3_000, rounds: int = 3) -> list[Row]:
    """Decisions per second of processor time while a queue is drained, by what pools say of owners."""

    def in_way(way: str) -> float:
        submissions = map(_submission, range(tasks))
        return drained(_opening(nodes, way), submissions, tasks, time.process_time)

    plain, ratios = in_each_way(WAYS, rounds, in_way)
    what = f"{tasks:,} queued tasks of {OWNERS} owners in {POOLS} pools"
    rows = [note(f"{what}, no limits", f"{plain:,.0f} /s")]
    for way, of_rounds in ratios.items():
        label, median = f"{what}, {way}, against no limits", statistics.median(of_rounds)
        rows.append(at_least(label, median, MARK, "", spread(of_rounds, "")))
    return rows


def _opening(nodes: int, way: str) -> Iterator[s.AnyStimulus]:
    """Pools that share the nodes, so that each has its quota, and no more than that fits."""
    whole = amounts(cpu=64, gpu=GPUS)
    yield s.ClusterObserved(
        nodes=tuple(NodeReport(node_id=f"node-{i:04}", total=whole) for i in range(nodes))
    )
    quota = amounts(cpu=64 * nodes // POOLS, gpu=GPUS * nodes // POOLS)
    fields = dict(WAYS[way])
    if "owner_limits" in fields:
        fields["owner_limits"] = parse_owner_limits(fields["owner_limits"])
    for i in range(POOLS):
        yield s.PoolRequested(spec=PoolSpec(name=f"pool-{i}", resources=quota, **fields))


def _submission(number: int) -> s.TaskSubmitted:
    submission = submitted(number, amounts(cpu=1, gpu=1), 5.0)
    owner = f"owner-{number // POOLS % OWNERS}"
    task = submission.task and msgspec.structs.replace(submission.task, owner=owner)
    return msgspec.structs.replace(submission, task=task, queue=True, request_id=None)
