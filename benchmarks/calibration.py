"""Repeats published schedules with the simulator: averages of other simulators, and the same rules here.

It needs the folder of public traces in the environment variable SCHEDULEMESH_TRACES; without it nothing is
measured. What is published, and under which conditions, is in docs/simulator_reference.md.
"""

from __future__ import annotations

import csv
import gzip
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from benchmarks.rows import Row, at_most, note
from schedulemesh.sim import (
    Job,
    NodeKind,
    Policy,
    SimulationResult,
    Timing,
    read_trace,
    reported,
    simulate,
)
from schedulemesh.sim.policy import parse_policy

#: Nodes of 8 GPUs of each virtual cluster.
HELIOS = {"7f04ca": 32, "2869ce": 16}
#: The simulator of Helios adds 7, 30 or 60 s to the work of a preempted job with 1, 2 to 8 or more GPUs.
HELIOS_COSTS = Timing(save_s=0, restore_by_gpus=((1, 7), (8, 30)), restore_s=60)
#: How often the estimates of QSSF are drawn.
DRAWS = 30
MURI = ("muri_trace1", "muri_trace3")
#: The simulator of Muri lengthens each iteration by this factor, and subtracts about 10 s for a start.
MURI_FACTOR = 1.015
MURI_COSTS = Timing(save_s=0, restore_s=10)
MURI_GPUS = 64
_LEFT = {"estimates": True, "shortest_preempts": True}
#: The orders of the queue with which Muri's baselines are repeated.
MURI_ORDERS: dict[str, dict[str, Any]] = {
    "SRTF": {"order": "shortest_remaining", **_LEFT},
    "SRSF": {"order": "shortest_service", **_LEFT},
}


class Averages(msgspec.Struct, frozen=True, kw_only=True):
    """What is published of one policy on one trace, and what the simulator gives: seconds."""

    published_jct_s: float
    jct_s: float
    #: Waiting, also after a preemption; 0: not published.
    published_wait_s: float = 0.0
    wait_s: float = 0.0

    @property
    def jct_off(self) -> float:
        """By which part of the published mean JCT the simulated one differs; negative: it is shorter."""
        return self.jct_s / self.published_jct_s - 1.0

    @property
    def wait_off(self) -> float:
        """The same of the mean waiting."""
        return self.wait_s / self.published_wait_s - 1.0 if self.published_wait_s else 0.0


def calibration() -> list[Row]:
    """Every published average; nothing where there are no traces."""
    folder = os.environ.get("SCHEDULEMESH_TRACES", "")
    if not folder:
        return [
            note("calibration", "SCHEDULEMESH_TRACES does not name the folder of public traces")
        ]
    return list(_rows(Path(folder)))


def _rows(traces: Path) -> Iterator[Row]:
    for cluster in HELIOS:
        yield from _compared(f"{cluster}, SRTF", srtf(traces, cluster))
        draws = [qssf(traces, cluster, seed) for seed in range(DRAWS)]
        yield from _drawn(f"{cluster}, QSSF, {DRAWS} draws", draws)
    for trace in MURI:
        for policy in ("SRTF", "SRSF"):
            yield _jct(f"{trace}, {policy}", muri(traces, trace, policy))
    fcfs, easy = (hpc2n(traces, queueing) for queueing in ("strict", "best_effort"))
    before, after = waits(fcfs), waits(easy)
    later = sum(after[name] > before[name] for name in before)
    mean = fmean(before.values())
    yield at_most("hpc2n, EASY: mean wait", fmean(after.values()), mean, " s", "FCFS")
    yield note("hpc2n, EASY: jobs that wait longer than under FCFS", f"{later} of {len(before)}")


def _compared(what: str, found: Averages) -> Iterator[Row]:
    yield _jct(what, found)
    detail = f"{found.wait_s:,.0f} s for {found.published_wait_s:,.0f}"
    yield at_most(f"{what}: mean waiting", 100 * abs(found.wait_off), 1.0, " % off", detail)


def _jct(what: str, found: Averages, *, checked: bool = True) -> Row:
    detail = f"{found.jct_s:,.0f} s for {found.published_jct_s:,.0f}"
    if not checked:
        return note(f"{what}: mean JCT", f"{100 * found.jct_off:+.1f} % ({detail})")
    return at_most(f"{what}: mean JCT", 100 * abs(found.jct_off), 1.0, " % off", detail)


def _drawn(what: str, draws: list[Averages]) -> Iterator[Row]:
    mean = Averages(
        published_jct_s=draws[0].published_jct_s, jct_s=fmean(draw.jct_s for draw in draws)
    )
    yield _jct(what, mean)
    waited = [draw.wait_s for draw in draws]
    between = f"{fmean(waited):,.0f} s ({min(waited):,.0f} to {max(waited):,.0f})"
    published = f"{draws[0].published_wait_s:,.0f}"
    yield note(f"{what}: mean waiting", f"{between} for {published}")


# Helios (SC'21)


def srtf(traces: Path, cluster: str) -> Averages:
    """Shortest remaining time first, with preemption, durations known."""
    queue = {"order": "shortest_remaining", "shortest_preempts": True}
    found = _helios(traces, cluster, queue, "greedy", lambda job: job.duration_s)
    return _averages(traces, cluster, "srtf", found)


def qssf(traces: Path, cluster: str, seed: int) -> Averages:
    """Quasi-shortest service first: by estimated duration times GPUs, strictly. The authors drew the
    estimates at random, without a seed, around the durations: each draw is one of many possible results.
    """
    draw = random.Random(seed)
    jobs = _jobs_of(traces, cluster)
    service = {job.job_id: int(job.duration_s * (1.0 + _error(draw))) * job.gpus for job in jobs}
    # Errors of more than 100 % give negative durations, which come first. What counts is the order alone.
    least = min(service.values())
    found = _helios(
        traces,
        cluster,
        {"order": "shortest_service"},
        "strict",
        lambda job: (service[job.job_id] - least + 1.0) / job.gpus,
    )
    return _averages(traces, cluster, "qssf", found)


def _error(draw: random.Random) -> float:
    """By which part of the duration an estimate is off: up to 10 % for one job in ten, 50 % for half of all,
    100 % for 70 %, ten times for 90 %, and a hundred times.
    """
    level = draw.random()
    if level <= 0.1:
        return draw.uniform(-0.1, 0.1)
    bounds = ((0.5, 0.1, 0.5), (0.7, 0.5, 1.0), (0.9, 1.0, 10.0), (1.0, 10.0, 100.0))
    low, high = next((low, high) for most, low, high in bounds if level <= most)
    return draw.uniform(low, high) * draw.choice((-1, 1))


def _helios(
    traces: Path,
    cluster: str,
    queue: dict[str, Any],
    queueing: str,
    estimate: Callable[[Job], float],
) -> SimulationResult:
    jobs = [
        msgspec.structs.replace(job, estimate_s=estimate(job)) for job in _jobs_of(traces, cluster)
    ]
    nodes = HELIOS[cluster]
    policy = _policy({"gpu": 8 * nodes}, queueing, queue)
    return simulate(jobs, [NodeKind(count=nodes, gpu=8)], policy, HELIOS_COSTS)


def _jobs_of(traces: Path, cluster: str) -> list[Job]:
    return [job for job in read_trace(traces / "helios_philly_dev.csv.gz") if job.pool == cluster]


def _averages(traces: Path, cluster: str, policy: str, found: SimulationResult) -> Averages:
    (row,) = (
        row
        for row in _table(traces / "helios_philly_dev_expected.csv")
        if (row["vc"], row["policy"]) == (cluster, policy)
    )
    report = reported(found)[""]
    return Averages(
        published_jct_s=float(row["published_avg_jct_s"]),
        jct_s=report.jct_s.mean,
        published_wait_s=float(row["published_avg_queue_s"]),
        wait_s=fmean(run.waited_s for run in found.runs),
    )


# Muri (SIGCOMM'22)


def muri(traces: Path, trace: str, policy: str) -> Averages:
    """One of the baselines on 64 GPUs, which the authors count without regard to nodes."""
    queue = dict(MURI_ORDERS[policy])
    known = queue.pop("estimates", False)
    jobs = [_lengthened(job, row, known=known) for job, row in _with_rows(traces, trace)]
    quota = {"gpu": MURI_GPUS}
    found = simulate(jobs, [NodeKind(gpu=MURI_GPUS)], _policy(quota, "greedy", queue), MURI_COSTS)
    return _muri_averages(traces, trace, policy, reported(found)[""].jct_s.mean)


def _muri_averages(traces: Path, trace: str, policy: str, jct_s: float) -> Averages:
    (expected,) = (
        row
        for row in _table(traces / "muri_expected.csv")
        if (row["trace"], row["policy"]) == (trace.removeprefix("muri_"), policy)
    )
    return Averages(published_jct_s=float(expected["published_avg_jct_s"]), jct_s=jct_s)


def _with_rows(traces: Path, trace: str) -> Iterator[tuple[Job, dict[str, str]]]:
    path = traces / f"{trace}.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = {row["job_id"]: row for row in csv.DictReader(file)}
    for job in read_trace(path):
        yield job, rows[job.job_id]


def _lengthened(job: Job, row: dict[str, str], *, known: bool) -> Job:
    """The job with the duration that it has in Muri's simulator: that of its iterations."""
    seconds = int(row["iterations"]) * float(row["iteration_time_ms"]) / 1000.0 * MURI_FACTOR
    return msgspec.structs.replace(job, duration_s=seconds, estimate_s=seconds if known else None)


# HPC2N


def hpc2n(traces: Path, queueing: str) -> SimulationResult:
    """First come, first served on 120 nodes of 2 CPUs: "strict", or with backfill ("best_effort": EASY), with
    the users' estimates.
    """
    jobs = read_trace(traces / "hpc2n_excerpt.csv.gz")
    return simulate(
        jobs, [NodeKind(count=120, cpu=2)], _policy({"cpu": 240}, queueing, {"order": "fifo"})
    )


def waits(found: SimulationResult) -> dict[str, float]:
    """Seconds from the submission of each job to its start."""
    return {run.job.job_id: run.queue_s for run in found.runs}


def _policy(quota: dict[str, int], queueing: str, queue: dict[str, Any]) -> Policy:
    """One pool, without a limit on how often a job is preempted: none of the published rules has one."""
    pool = {"name": "all", "resources": quota, "queueing": queueing, "on_preempted": "requeue"}
    policies = {"queue": queue, "preemption": {"max_preemptions": 1_000_000}}
    return parse_policy({"pools": [pool], "policy": policies})


def _table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))
