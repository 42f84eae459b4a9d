"""The figures of a simulation, per pool and in all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from schedulemesh.domain.resources import UNIT
from schedulemesh.sim.runs import Run
from schedulemesh.sim.simulation import SimulationResult
from schedulemesh.sim.timeline import busy_period, held_steps, mean_of
from schedulemesh.sim.usage import Kind, units_of

#: Seconds that a job counts as at least in the bounded slowdown (Feitelson).
BOUND_S = 10.0
#: Seconds by which a job may end later than alone without being worse off: one tick of the supervisor.
TOLERANCE_S = 1.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantity is distributed over jobs."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """What the same jobs would have waited had each pool been alone, see ``sim.alone``."""

    delay_s: Spread
    #: Jobs whose delay is longer than alone by more than ``TOLERANCE_S``, and by how many seconds.
    worse_off: int
    worse_off_by_s: Spread


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one pool, or of all."""

    jobs: int
    #: Jobs that were refused, and those that their time limits have ended before their work was done.
    refused: int
    cut_short: int
    #: Seconds from submission to the first start.
    queue_s: Spread
    #: Seconds from submission to end, less the duration.
    delay_s: Spread
    #: Seconds from submission to end.
    jct_s: Spread
    bounded_slowdown: Spread
    preemptions: int
    preemptions_per_job: Spread
    #: GPU-seconds (CPU-seconds where the cluster has no GPUs, or the quota only CPUs) of work that was done
    #: again, and those for which jobs held resources without working; then both as parts of all work.
    lost_gpu_s: float
    overhead_gpu_s: float
    lost_work: float
    overhead: float
    #: The part of the guaranteed resources (in all: of those of the nodes that were there) that was held
    #: between the first submission and the last end.
    utilisation: float
    #: Seconds in which the pool lacked its guarantee.
    violation_s: float
    #: None: it was not asked for.
    alone: Alone | None = None


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


def reported(
    result: SimulationResult, delays_alone: Mapping[str, float] | None = None
) -> dict[str, Report]:
    """The report of each pool by its name, and of all jobs under the empty name. ``delays_alone``: the delay
    of each job had its pool been alone.
    """
    by_pool: dict[str, list[Run]] = {name: [] for name in result.pools}
    for run in result.runs:
        by_pool[run.pool_name].append(run)
    first, last = busy_period(result)
    capacity = mean_of(result.capacity, first - result.begin, last - result.begin)
    kind, units = result.kind, capacity * UNIT
    reports = {"": _report(result, result.runs, kind, units, tuple(result.pools), delays_alone)}
    for name, runs in by_pool.items():
        kind = result.pools[name].kind
        units = units_of(result.pools[name].quota, kind)
        reports[name] = _report(result, runs, kind, units, (name,), delays_alone)
    return reports


def _report(
    result: SimulationResult,
    every: Sequence[Run],
    kind: Kind,
    units: float,
    pools: tuple[str, ...],
    delays_alone: Mapping[str, float] | None,
) -> Report:
    """The figures of these pools, in this kind of resource, of which they have so many units."""
    runs = [run for run in every if run.ended_at is not None]
    first, last = (at - result.begin for at in busy_period(result))
    utilisations = (mean_of(held_steps(result, name, kind, units), first, last) for name in pools)

    def total(seconds: Callable[[Run], float]) -> float:
        return sum(seconds(run) * units_of(run.need, kind) for run in runs)

    cut_short = sum(run.is_cut_short for run in every)
    work = total(lambda run: run.job.duration_s) or 1.0
    lost, overhead = total(lambda run: run.lost_s), total(lambda run: run.overhead_s)
    return Report(
        jobs=len(runs),
        refused=len(every) - len(runs) - cut_short,
        cut_short=cut_short,
        queue_s=spread([run.queue_s for run in runs]),
        delay_s=spread([run.delay_s for run in runs]),
        jct_s=spread([run.jct_s for run in runs]),
        bounded_slowdown=spread(
            [max(1.0, run.jct_s / max(run.job.duration_s, BOUND_S)) for run in runs]
        ),
        preemptions=sum(run.preemptions for run in runs),
        preemptions_per_job=spread([run.preemptions for run in runs]),
        lost_gpu_s=lost / UNIT,
        overhead_gpu_s=overhead / UNIT,
        lost_work=lost / work,
        overhead=overhead / work,
        utilisation=sum(utilisations),
        violation_s=sum(result.pools[name].short_s for name in pools),
        alone=None if delays_alone is None else _alone(runs, delays_alone),
    )


def _alone(runs: Sequence[Run], delays_s: Mapping[str, float]) -> Alone:
    """Jobs that would not have run alone, being larger than their pool's quota, are not worse off."""
    longer = [run.delay_s - delays_s.get(run.job.job_id, math.inf) for run in runs]
    worse = [seconds for seconds in longer if seconds > TOLERANCE_S]
    delays = [delays_s[run.job.job_id] for run in runs if run.job.job_id in delays_s]
    return Alone(delay_s=spread(delays), worse_off=len(worse), worse_off_by_s=spread(worse))
