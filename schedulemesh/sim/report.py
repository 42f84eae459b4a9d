"""The figures of a simulation, per pool and in all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schedulemesh.domain.resources import UNIT
from schedulemesh.sim.runs import Run
from schedulemesh.sim.simulation import Result

#: Seconds that a job counts as at least in the bounded slowdown (Feitelson).
BOUND_S = 10.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantity is distributed over jobs."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one pool, or of all."""

    jobs: int
    #: Jobs that were refused.
    refused: int
    #: Seconds from submission to the first start.
    queue_s: Spread
    #: Seconds from submission to end, less the duration.
    delay_s: Spread
    #: Seconds from submission to end.
    jct_s: Spread
    bounded_slowdown: Spread
    preemptions: int
    max_preemptions: int
    #: GPU-seconds (of jobs without GPUs: CPU-seconds) of work that was done again, and those for which jobs
    #: held resources without working, as parts of all work.
    lost_work: float
    overhead: float
    #: The part of the guaranteed (in all: of the cluster's) resources that was held between the first
    #: submission and the last end.
    utilisation: float
    #: Seconds in which the pool lacked its guarantee.
    violation_s: float


def spread(values: Sequence[float]) -> Spread:
    """The distribution of these values; percentiles by nearest rank."""
    ordered = sorted(values)
    if not ordered:
        return Spread(mean=0.0, p50=0.0, p95=0.0, p99=0.0, max=0.0)

    def percentile(part: float) -> float:
        return ordered[max(0, -(-int(part * len(ordered)) // 100) - 1)]

    return Spread(
        mean=sum(ordered) / len(ordered),
        p50=percentile(50),
        p95=percentile(95),
        p99=percentile(99),
        max=ordered[-1],
    )


def reported(result: Result) -> dict[str, Report]:
    """The report of each pool by its name, and of all jobs under the empty name."""
    by_pool: dict[str, list[Run]] = {name: [] for name in result.pools}
    for run in result.runs:
        by_pool[run.pool_name].append(run)
    found = {"": _report(result, result.runs, result.capacity, tuple(result.pools))}
    for name, runs in by_pool.items():
        quota = result.pools[name].quota / UNIT
        found[name] = _report(result, runs, quota, (name,))
    return found


def _report(
    result: Result, every: Sequence[Run], capacity: float, pools: tuple[str, ...]
) -> Report:
    runs = [run for run in every if run.ended_at is not None]
    work = sum(run.job.duration_s * run.units for run in runs) or 1.0
    first = min((run.submitted_at for run in result.runs), default=0.0)
    last = max((run.ended_at or 0.0 for run in result.runs), default=0.0)
    held = sum((run.job.duration_s + run.lost_s + run.overhead_s) * run.units for run in runs)
    span = (last - first) * capacity * UNIT
    return Report(
        jobs=len(runs),
        refused=len(every) - len(runs),
        queue_s=spread([run.queue_s for run in runs]),
        delay_s=spread([run.delay_s for run in runs]),
        jct_s=spread([run.jct_s for run in runs]),
        bounded_slowdown=spread(
            [max(1.0, run.jct_s / max(run.job.duration_s, BOUND_S)) for run in runs]
        ),
        preemptions=sum(run.preemptions for run in runs),
        max_preemptions=max((run.preemptions for run in runs), default=0),
        lost_work=sum(run.lost_s * run.units for run in runs) / work,
        overhead=sum(run.overhead_s * run.units for run in runs) / work,
        utilisation=held / span if span > 0 else 0.0,
        violation_s=sum(result.pools[name].short_s for name in pools),
    )
