"""Budgets of pools and owners: what it costs to charge them, and to hold what is beyond them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import msgspec

from benchmarks.mesh import POOLS, amounts, submitted
from benchmarks.queueing import drained, in_each_way
from benchmarks.rows import Row, at_least, note, spread
from schedulemesh.domain.budgets import parse_budget, parse_owner_budgets
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.messages import stimuli as s

OWNERS, GPUS, MARK = 40, 8, 0.9
_ENOUGH = {"gpu_hours": 1e9, "period": "month"}
WAYS = {
    "no budgets": {},
    "a budget of each pool": {"budget": _ENOUGH},
    "budgets of pools and owners": {"budget": _ENOUGH, "owner_budgets": {"default": _ENOUGH}},
}


def budgets(nodes: int = 30, tasks: int = 3_000, rounds: int = 3) -> list[Row]:
    """Decisions per second of processor time while a queue is drained, by the budgets that pools have."""

    def in_way(way: str) -> float:
        submissions = map(_submission, range(tasks))
        return drained(_opening(nodes, way), submissions, tasks, time.process_time)

    plain, ratios = in_each_way(WAYS, rounds, in_way)
    what = f"{tasks:,} queued tasks of {OWNERS} owners in {POOLS} pools"
    rows = [note(f"{what}, no budgets", f"{plain:,.0f} /s")]
    for way, of_rounds in ratios.items():
        label, median = f"{what}, {way}, against none", statistics.median(of_rounds)
        rows.append(at_least(label, median, MARK, "", spread(of_rounds, "")))
    return rows


def _opening(nodes: int, way: str) -> Iterator[s.AnyStimulus]:
    """Pools that share the nodes, so that each has its quota, and no more than that fits."""
    total = amounts(cpu=64, gpu=GPUS)
    yield s.ClusterObserved(
        nodes=tuple(NodeReport(node_id=f"node-{i:04}", total=total) for i in range(nodes))
    )
    quota = amounts(cpu=64 * nodes // POOLS, gpu=GPUS * nodes // POOLS)
    budget = parse_budget(WAYS[way].get("budget"))
    owner_budgets = parse_owner_budgets(WAYS[way].get("owner_budgets"))
    for i in range(POOLS):
        yield s.PoolRequested(
            spec=PoolSpec(
                name=f"pool-{i}", resources=quota, budget=budget, owner_budgets=owner_budgets
            )
        )


def _submission(number: int) -> s.TaskSubmitted:
    submission = submitted(number, amounts(cpu=1, gpu=1), 5.0)
    owner = f"owner-{number // POOLS % OWNERS}"
    task = submission.task and msgspec.structs.replace(submission.task, owner=owner)
    return msgspec.structs.replace(submission, task=task, queue=True, request_id=None)
