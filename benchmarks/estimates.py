"""What durations from earlier runs bring, where users declare none: waiting, and how near they come.

A load that is made up, and where SCHEDULEMESH_TRACES names the folder of public traces, two of these.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.rows import Row, at_most, note
from schedulemesh.domain.resources import UNIT
from schedulemesh.domain.task_kinds import TaskKind, name_pattern
from schedulemesh.engine.state.estimates import Estimates
from schedulemesh.sim import Job, NodeKind, read_trace, simulate
from schedulemesh.sim.compare import Figure, compare
from schedulemesh.sim.policy import Policy, parse_policy
from schedulemesh.sim.simulation import SimulationResult

_ORDERS = ("fifo", "shortest_remaining")
#: Names, GPUs and typical seconds of the work that each user of the made-up load repeats.
_WORK = (("eval", 1, 120.0), ("sft", 4, 3600.0), ("sweep", 1, 900.0), ("pretrain", 8, 6000.0))
_USERS = 6
#: Seconds between two submissions on average: the load is 85 % of 32 GPUs.
_INTERVAL_S = 830.0
#: The pools of the two virtual clusters of Philly; the jobs of the other loads are in one pool.
_PHILLY = [
    {"name": name, "cohort": "all", "resources": {"gpu": gpus}, "on_preempted": "requeue"}
    for name, gpus in (("7f04ca", 256), ("2869ce", 128))
]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, and where they run."""

    name: str
    jobs: list[Job]
    nodes: list[NodeKind]
    #: As in a file with a policy; empty: one pool has all nodes.
    pools: list[dict[str, Any]] = []
    #: Copies with submissions shifted by up to half an hour.
    copies: int = 0


def estimates(jobs: int = 600) -> list[Row]:
    """A made-up load of so many jobs, and the traces that there are."""
    rows = _rows(Load(name="made up", jobs=made_up(jobs), nodes=[NodeKind(count=4, gpu=8)]))
    folder = os.environ.get("SCHEDULEMESH_TRACES")
    if folder:
        rows += [row for load in _traces(Path(folder)) for row in _rows(load)]
    return rows


def made_up(count: int, seed: int = 1) -> list[Job]:
    """Jobs of users who repeat their work; the duration of a run is spread around that of its kind."""
    draw, jobs, at = random.Random(seed), [], 0.0
    for number in range(count):
        at += draw.expovariate(1.0 / _INTERVAL_S)
        owner, (name, gpus, typical_s) = draw.randrange(_USERS), draw.choice(_WORK)
        seconds = typical_s * (1 + owner / _USERS) * draw.lognormvariate(0.0, 0.3)
        job_id = f"{name}-{number}"
        jobs.append(
            Job(job_id=job_id, submit_s=at, duration_s=seconds, gpus=gpus, user=f"u{owner}")
        )
    return jobs


def _traces(folder: Path) -> list[Load]:
    """Two virtual clusters of Philly that lend each other what is idle; and a week of HPC2N, whose 240
    processors are one node, as in most studies of backfill.
    """
    philly = read_trace(folder / "helios_philly_dev.csv.gz")
    hpc2n = read_trace(folder / "hpc2n_excerpt.csv.gz")
    return [
        Load(
            name="Philly", jobs=philly, nodes=[NodeKind(count=48, gpu=8)], pools=_PHILLY, copies=7
        ),
        Load(name="HPC2N", jobs=hpc2n, nodes=[NodeKind(cpu=240)], copies=3),
    ]


def _rows(load: Load) -> list[Row]:
    blind = [msgspec.structs.replace(job, estimate_s=None) for job in load.jobs]
    exact = [msgspec.structs.replace(job, estimate_s=job.duration_s) for job in load.jobs]
    asked = load.jobs if any(job.estimate_s is not None for job in load.jobs) else []
    rows = []
    for order in _ORDERS:
        unknown = _delay(load, blind, order)
        estimated = _delay(load, blind, order, counted=True)
        part = estimated.mean / unknown.mean
        detail = f"{_shown(estimated)}, {_shown(unknown)} without"
        what = f"estimates, {load.name}, {order}: mean delay as a part of that without"
        rows.append(at_most(what, part, 1.0, "", detail))
        for known, given in (("requested", asked), ("exact", exact)):
            if given:
                what = f"estimates, {load.name}, {order}: {known} durations"
                rows.append(note(what, _shown(_delay(load, given, order))))
    what = f"estimates, {load.name}: duration / estimate at the start"
    result = simulate(blind, load.nodes, _policy(load, "fifo", counted=True))
    return [*rows, note(what, _accuracy(result))]


def _policy(load: Load, order: str, *, counted: bool) -> Policy:
    queue = {"order": order, "estimates": counted}
    return parse_policy({"pools": load.pools, "policy": {"queue": queue}})


def _delay(load: Load, jobs: Sequence[Job], order: str, *, counted: bool = False) -> Figure:
    """The mean delay over the load and its copies with shifted submissions."""
    policy = _policy(load, order, counted=counted)
    (found,) = compare(jobs, load.nodes, [policy], copies=load.copies)
    return found.figure("delay_s.mean")


def _shown(delay: Figure) -> str:
    return f"{delay.mean:,.0f} ± {delay.deviation:,.0f} s"


def _accuracy(result: SimulationResult) -> str:
    """What came of the estimates that were known when each job started."""
    known, ratios, missing = Estimates(), [], 0
    runs = [run for run in result.runs if run.first_start is not None and run.ended_at is not None]
    times = [(run.first_start, 1, run.job) for run in runs]
    times += [(run.ended_at, 0, run.job) for run in runs]
    for _, starts, job in sorted(times, key=lambda entry: (entry[0], entry[1], entry[2].job_id)):
        kind = _kind(job)
        if not starts:
            known.learn(kind, job.duration_s)
            continue
        estimate = known.estimate(kind)
        if estimate is None:
            missing += 1
        else:
            ratios.append(job.duration_s / max(1.0, estimate.seconds))
    low, middle, high = statistics.quantiles(ratios, n=4)
    near = sum(0.5 <= ratio <= 2.0 for ratio in ratios) / len(ratios)
    return (
        f"median {middle:.2f}, quartiles {low:.2f}-{high:.2f}, {near:.0%} within a factor of 2, "
        f"{missing} of {len(runs)} without an estimate"
    )


def _kind(job: Job) -> TaskKind:
    return TaskKind(
        owner=job.user,
        pool_name=job.pool,
        pattern=name_pattern(job.job_id),
        gpu=round(job.gpus * UNIT),
        cpu=None if job.gpus else round(job.cpus * UNIT),
    )
