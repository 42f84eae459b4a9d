"""The command simulate: a trace of jobs on a cluster under one policy, or under several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.command import Output, command
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Row

if TYPE_CHECKING:
    from schedulemesh.sim.compare import Comparison

app = typer.Typer()


def _seconds(value: object) -> str:
    return f"{float(str(value)):,.0f}"


def _number(value: object) -> str:
    return f"{float(str(value)):,.6g}"


def _percent(value: object) -> str:
    return f"{100.0 * float(str(value)):.3g} %"


def _time(heading: str, key: str, *, wide: bool = False) -> Column:
    return Column(heading=heading, key=key, show=_seconds, right=True, wide=wide)


def _count(heading: str, key: str, *, wide: bool = False) -> Column:
    return Column(heading=heading, key=key, show=_number, right=True, wide=wide)


_FIGURES = (
    Column(heading="policy", key="policy"),
    Column(heading="pool", key="pool"),
    _count("jobs", "jobs"),
    _time("mean delay s", "delay_s.mean"),
    _time("± s", "delay_deviation_s"),
    _time("worst copy", "delay_worst_s", wide=True),
    _time("p50", "delay_s.p50", wide=True),
    _time("p95", "delay_s.p95"),
    _time("p99", "delay_s.p99", wide=True),
    _time("max", "delay_s.max", wide=True),
    _time("mean queueing s", "queue_s.mean"),
    _time("mean JCT s", "jct_s.mean"),
    _count("preemptions", "preemptions"),
    _count("most of one task", "max_preemptions", wide=True),
    Column(heading="lost work", key="lost_work", show=_percent, right=True),
    Column(heading="overhead", key="overhead", show=_percent, right=True, wide=True),
    Column(heading="utilisation", key="utilisation", show=_percent, right=True),
    _time("without guarantee s", "violation_s"),
)


@command(app)
def simulate(
    trace: Annotated[
        str, typer.Argument(help="Jobs: a .csv or .swf file, packed with gzip or not.")
    ],
    output: Output,
    cluster: Annotated[str, typer.Option(help="The nodes: a .csv file.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Pools and policies: a file as for apply. Default: one pool has all nodes."
        ),
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another such file to compare with. Repeatable.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Only the jobs of this pool of the trace.")
    ] = None,
    save_s: Annotated[float, typer.Option(help="Seconds that saving a state takes.")] = 60.0,
    restore_s: Annotated[float, typer.Option(help="Seconds that loading a state takes.")] = 120.0,
    start_s: Annotated[float, typer.Option(help="Seconds that starting an agent takes.")] = 0.0,
    copies: Annotated[
        int, typer.Option(min=0, help="Also so many copies of the trace with shifted submissions.")
    ] = 0,
    jitter_s: Annotated[
        float, typer.Option(help="By how many seconds at most submissions of copies are shifted.")
    ] = 1800.0,
    seed: Annotated[int, typer.Option(help="Seed of the first copy.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Simulations at the same time.")] = 1,
) -> None:
    """Run a trace of jobs in virtual time, and report how long they wait under each policy."""
    from schedulemesh import sim

    jobs = [job for job in sim.read_trace(trace) if only in (None, job.pool)]
    nodes = sim.read_nodes(cluster)
    files = [*([policy] if policy else []), *(compare or [])]
    policies = [sim.read_policy(path) for path in files] or [sim.Policy()]
    timing = sim.Timing(save_s=save_s, restore_s=restore_s, start_s=start_s)
    found = sim.compare(
        jobs,
        nodes,
        policies,
        timing,
        copies=copies,
        jitter_s=jitter_s,
        seed=seed,
        processes=processes,
    )
    rows = [_row(one, pool) for one in found for pool in one.reports[0]]
    emit(Listing(kind="figures", rows=rows, columns=_FIGURES, name="policy"), output)


def _row(comparison: Comparison, pool: str) -> Row:
    delay = comparison.figure("delay_s.mean", pool)
    return {
        "policy": comparison.policy,
        "pool": pool or "(all)",
        "delay_deviation_s": delay.deviation,
        "delay_worst_s": delay.worst,
        **comparison.mean(pool),
    }
