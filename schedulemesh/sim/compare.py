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
from typing import Any, NamedTuple

import msgspec

from schedulemesh.domain.numbers import parse_duration
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.alone import delays_alone
from schedulemesh.sim.cluster import NodeKind
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.node_changes import NodeChange
from schedulemesh.sim.policy import Policy
from schedulemesh.sim.report import Report, reported
from schedulemesh.sim.simulation import simulate
from schedulemesh.sim.timeline import Timeline, timeline
from schedulemesh.sim.timing import Timing


class _Outcome(NamedTuple):
    """What is kept of a simulation."""

    reports: dict[str, Report]
    #: None: it is that of a copy of the trace.
    timeline: Timeline | None
    refusal: str


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over several copies of a trace."""

    mean: float
    deviation: float
    worst: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy did to the trace and its copies."""

    policy: str
    #: How long actions took.
    timing: Timing
    #: The reports of the trace, then of each copy, by pool; the empty name: all pools.
    reports: tuple[dict[str, Report], ...]
    #: What happened over time with the trace itself.
    timeline: Timeline
    #: Which job of the trace was the first to be refused, and why; empty: none was.
    first_refusal: str = ""

    def mean(self, pool: str = "") -> dict[str, Any]:
        """The report of a pool in plain data, each figure as its mean over the copies."""
        means: dict[str, Any] = _mean(
            [msgspec.to_builtins(report[pool]) for report in self.reports]
        )
        return means

    def figure(self, name: str, pool: str = "") -> Figure:
        """A figure of the report, such as ``delay_s.mean``, over the copies."""
        values = [_value(report[pool], name) for report in self.reports]
        return Figure(mean=fmean(values), deviation=pstdev(values), worst=max(values))


def jittered(jobs: Sequence[Job], seed: int, most_s: float = 1800.0) -> list[Job]:
    """The jobs, each submitted up to so many seconds earlier or later, but not before the trace begins.

    Raises InvalidRequestError for seconds that are negative or no finite number.
    """
    most_s = parse_duration(most_s, "jitter_s")
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
    alone: bool = False,
    node_changes: Sequence[NodeChange] = (),
) -> list[Comparison]:
    """Run each policy on the trace and on so many copies. ``seed``: of the first copy, each further one has
    the next. ``processes``: how many run at the same time; 1: all in this process. ``alone``: also simulate
    each pool alone, on nodes that never change, and report how many jobs are worse off than that.
    """
    traces = [list(jobs), *(jittered(jobs, seed + n, jitter_s) for n in range(copies))]
    policies, nodes = list(policies), list(nodes)
    work = [(policy, trace, n == 0) for policy in policies for n, trace in enumerate(traces)]
    run = partial(_outcome, nodes=nodes, timing=timing, alone=alone, node_changes=node_changes)
    if processes == 1:
        outcomes = [run(one) for one in work]
    else:
        with ProcessPoolExecutor(processes) as pool:
            outcomes = list(pool.map(run, work))
    size = len(traces)
    return [
        _comparison(policy, timing or Timing(), outcomes[n * size : (n + 1) * size])
        for n, policy in enumerate(policies)
    ]


def _comparison(policy: Policy, timing: Timing, outcomes: Sequence[_Outcome]) -> Comparison:
    ((of_trace, refusal),) = (
        (one.timeline, one.refusal) for one in outcomes if one.timeline is not None
    )
    return Comparison(
        policy=policy.name,
        timing=timing,
        reports=tuple(one.reports for one in outcomes),
        timeline=of_trace,
        first_refusal=refusal,
    )


def _outcome(
    work: tuple[Policy, list[Job], bool],
    nodes: list[NodeKind],
    timing: Timing | None,
    *,
    alone: bool,
    node_changes: Sequence[NodeChange],
) -> _Outcome:
    """The report of one simulation, and its timeline where it is asked for."""
    policy, trace, with_timeline = work
    delays = delays_alone(trace, nodes, policy, timing) if alone else None
    result = simulate(trace, nodes, policy, timing, node_changes=node_changes)
    refused = min(
        (run for run in result.runs if run.error), key=lambda run: run.submitted_at, default=None
    )
    return _Outcome(
        reported(result, delays),
        timeline(result) if with_timeline else None,
        "" if refused is None else f"{refused.job.job_id!r}: {refused.error}",
    )


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
