"""The recommended policy on other clusters than those on which it was chosen: cohorts of virtual clusters of
Philly and of Muri's workloads, each pool against itself on nodes of its own under strict FIFO.

It needs the folder of public traces in the environment variable SCHEDULEMESH_TRACES; without it nothing is
measured. The traces do not tell how many nodes a virtual cluster had; with these numbers most are full.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.rows import Row, at_most, note
from schedulemesh.sim import Job, NodeKind, Policy, read_trace, reported, simulate
from schedulemesh.sim.policy import parse_policy

#: Nodes of 8 GPUs of each pool, by cohort; pools of the trace philly_vc, or traces of their own.
COHORTS = {
    "A": {"11cb48": 2, "b436b2": 10, "6c71a0": 6},
    "B": {"7f04ca": 10, "2869ce": 6, "103959": 3, "e13805": 4},
    "C": {"11cb48": 2, "103959": 3, "e13805": 4},
    "D": {"muri_trace1": 40, "muri_trace3": 10},
}
#: The first weeks of philly_vc have only a few jobs.
_BEGIN_S = 20 * 86400.0
#: examples/policies/las.yaml, and the same without least attained service.
_POLICIES: dict[str, dict[str, Any]] = {
    "lend": {"queue": {"order": "fifo"}},
    "las": {
        "queue": {
            "order": "two_level_las",
            "las_preempts": True,
            "las_threshold_gpu_hours": 1,
        },
        "preemption": {"min_runtime": 600, "defragment_after_s": 600},
    },
}


def cohorts() -> list[Row]:
    """Every cohort; nothing where there are no traces."""
    folder = os.environ.get("SCHEDULEMESH_TRACES", "")
    if not folder:
        return [note("cohorts", "SCHEDULEMESH_TRACES does not name the folder of public traces")]
    return [row for name in COHORTS for row in _rows(name, _jobs(Path(folder), COHORTS[name]))]


def _jobs(traces: Path, pools: Mapping[str, int]) -> list[Job]:
    """The jobs of a cohort."""
    own = [name for name in pools if name.startswith("muri")]
    if own:
        return [
            msgspec.structs.replace(job, job_id=f"{name}-{job.job_id}", pool=name)
            for name in own
            for job in read_trace(traces / f"{name}.csv.gz")
        ]
    return [
        msgspec.structs.replace(job, submit_s=job.submit_s - _BEGIN_S)
        for job in read_trace(traces / "philly_vc.csv.gz")
        if job.pool in pools and job.submit_s >= _BEGIN_S
    ]


def _rows(name: str, jobs: list[Job]) -> Iterator[Row]:
    pools = COHORTS[name]
    nodes = [NodeKind(count=sum(pools.values()), gpu=8)]
    walls = {pool: _alone(jobs, pool, count) for pool, count in pools.items()}
    lend, las = (reported(simulate(jobs, nodes, _policy(pools, one))) for one in _POLICIES.values())
    for pool, count in pools.items():
        delays = (
            f"{walls[pool]:,.0f}, {lend[pool].delay_s.mean:,.0f}, {las[pool].delay_s.mean:,.0f} s"
        )
        yield at_most(
            f"cohort {name}, {pool}, {count} nodes: mean delay under las, relative to its own nodes",
            las[pool].delay_s.mean / walls[pool],
            1.0,
            " ×",
            f"own nodes, lend, las: {delays}; {las[pool].violation_s / 3600:,.1f} h without guarantee",
        )
    yield note(
        f"cohort {name}: GPU time lost under las, evictions",
        f"{las[''].overhead + las[''].lost_work:.2%}, {las[''].preemptions:,}",
    )


def _alone(jobs: list[Job], pool: str, nodes: int) -> float:
    """The mean delay of a pool on nodes of its own, whose jobs start strictly in their order, in seconds."""
    quota = {"name": pool, "resources": {"gpu": 8 * nodes}, "queueing": "strict"}
    policy = parse_policy({"pools": [quota], "policy": {"queue": {"order": "fifo"}}})
    mine = [job for job in jobs if job.pool == pool]
    return reported(simulate(mine, [NodeKind(count=nodes, gpu=8)], policy))[""].delay_s.mean


def _policy(pools: Mapping[str, int], policy: dict[str, Any]) -> Policy:
    """One cohort of the pools, each with the GPUs of its nodes as quota."""
    quotas = [
        {"name": n, "cohort": "all", "resources": {"gpu": 8 * count}, "on_preempted": "requeue"}
        for n, count in pools.items()
    ]
    return parse_policy({"pools": quotas, "policy": policy})
