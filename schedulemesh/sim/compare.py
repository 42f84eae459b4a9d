"""Compares policies on a trace and on copies of it with shifted submissions.

A single trace is chaotic: one submission a second later may change the waiting of hundreds of jobs. So each
policy runs on the trace and on copies of it whose submissions are shifted at random, the same for all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean, pstdev
from typing import Any

import msgspec

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.cluster import NodeKind
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.policy import Policy
from schedulemesh.sim.report import Report, reported
from schedulemesh.sim.simulation import simulate
from schedulemesh.sim.timing import Timing


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over several copies of a trace."""

    mean: float
    deviation: float
    worst: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy did to the trace and its copies."""

    policy: str
    #: The reports of the trace, then of each copy, by pool; the empty name: all pools.
    reports: tuple[dict[str, Report], ...]

    def mean(self, pool: str = "") -> dict[str, Any]:
        """The report of a pool in plain data, each figure as its mean over the copies."""
        found: dict[str, Any] = _mean(
            [msgspec.to_builtins(report[pool]) for report in self.reports]
        )
        return found

    def figure(self, name: str, pool: str = "") -> Figure:
        """A figure of the report, such as ``delay_s.mean``, over the copies."""
        values = [_value(report[pool], name) for report in self.reports]
        return Figure(mean=fmean(values), deviation=pstdev(values), worst=max(values))


def jittered(jobs: Sequence[Job], seed: int, most_s: float = 1800.0) -> list[Job]:
    """The jobs, each submitted up to so many seconds earlier or later, but not before the trace begins."""
    draw = random.Random(seed)
    return [
        msgspec.structs.replace(
            job, submit_s=max(0.0, float(round(job.submit_s + draw.uniform(-most_s, most_s))))
        )
        for job in jobs
    ]


def compare(
    jobs: Sequence[Job],
    nodes: Iterable[NodeKind],
    policies: Iterable[Policy],
    timing: Timing | None = None,
    *,
    copies: int = 0,
    jitter_s: float = 1800.0,
    seed: int = 1,
    processes: int = 1,
) -> list[Comparison]:
    """Run each policy on the trace and on so many copies. ``seed``: of the first copy, each further one has
    the next. ``processes``: how many run at the same time; 1: all in this process.
    """
    traces = [list(jobs), *(jittered(jobs, seed + n, jitter_s) for n in range(copies))]
    policies, nodes = list(policies), list(nodes)
    work = [(policy, trace) for policy in policies for trace in traces]
    run = partial(_report, nodes=nodes, timing=timing)
    if processes == 1:
        found = [run(one) for one in work]
    else:
        with ProcessPoolExecutor(processes) as pool:
            found = list(pool.map(run, work))
    size = len(traces)
    return [
        Comparison(policy=policy.name, reports=tuple(found[n * size : (n + 1) * size]))
        for n, policy in enumerate(policies)
    ]


def _report(
    work: tuple[Policy, list[Job]], nodes: list[NodeKind], timing: Timing | None
) -> dict[str, Report]:
    policy, trace = work
    return reported(simulate(trace, nodes, policy, timing))


def _mean(values: list[Any]) -> Any:
    """The mean of numbers, or of what dicts of them contain."""
    if isinstance(values[0], dict):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return fmean(values)


def _value(report: Report, name: str) -> float:
    value: object = report
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, int | float):
        raise InvalidRequestError(f"{name!r} is no figure of a report")
    return float(value)
