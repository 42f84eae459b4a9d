"""The command simulate: a trace of jobs on a cluster under one policy, or under several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.command import Output, command
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Row

if TYPE_CHECKING:
    from schedulemesh.sim.report import Report

app = typer.Typer()


def _seconds(value: object) -> str:
    return f"{float(str(value)):,.0f}"


def _percent(value: object) -> str:
    return f"{100.0 * float(str(value)):.3g} %"


def _time(heading: str, key: str, *, wide: bool = False) -> Column:
    return Column(heading=heading, key=key, show=_seconds, right=True, wide=wide)


_FIGURES = (
    Column(heading="policy", key="policy"),
    Column(heading="pool", key="pool"),
    Column(heading="jobs", key="jobs", right=True),
    _time("mean delay s", "delay_s.mean"),
    _time("p50", "delay_s.p50", wide=True),
    _time("p95", "delay_s.p95"),
    _time("p99", "delay_s.p99", wide=True),
    _time("max", "delay_s.max", wide=True),
    _time("mean queueing s", "queue_s.mean"),
    _time("mean JCT s", "jct_s.mean"),
    Column(heading="preemptions", key="preemptions", right=True),
    Column(heading="most of one task", key="max_preemptions", right=True, wide=True),
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
) -> None:
    """Run a trace of jobs in virtual time, and report how long they wait under each policy."""
    from schedulemesh import sim

    jobs = [job for job in sim.read_trace(trace) if only in (None, job.pool)]
    nodes = sim.read_nodes(cluster)
    files = [*([policy] if policy else []), *(compare or [])]
    policies = [sim.read_policy(path) for path in files] or [sim.Policy()]
    timing = sim.Timing(save_s=save_s, restore_s=restore_s, start_s=start_s)
    rows: list[Row] = []
    for one in policies:
        found = sim.reported(sim.simulate(jobs, nodes, one, timing))
        rows += [_row(one.name, pool, report) for pool, report in found.items()]
    emit(Listing(kind="figures", rows=rows, columns=_FIGURES, name="policy"), output)


def _row(policy: str, pool: str, report: Report) -> Row:
    from msgspec import to_builtins

    return {"policy": policy, "pool": pool or "(all)", **to_builtins(report)}
