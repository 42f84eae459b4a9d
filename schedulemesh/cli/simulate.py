"""The command simulate: a trace of jobs on a cluster under one policy, or under several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.command import Output, command, note
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.errors import InvalidRequestError, nearest

if TYPE_CHECKING:
    from schedulemesh.sim.compare import Comparison
    from schedulemesh.sim.jobs import Job
    from schedulemesh.sim.timing import Timing

app = typer.Typer()


def _seconds(value: object) -> str:
    return f"{float(str(value)):,.0f}"


def _hours(value: object) -> str:
    return f"{float(str(value)) / 3600.0:,.2f}"


def _number(value: object) -> str:
    return f"{float(str(value)):,.6g}"


def _percent(value: object) -> str:
    return f"{100.0 * float(str(value)):.3g} %"


def _time(heading: str, key: str, *, wide: bool = False, drop: int = 0) -> Column:
    return Column(heading=heading, key=key, show=_seconds, right=True, wide=wide, drop=drop)


def _count(heading: str, key: str, *, wide: bool = False, drop: int = 0) -> Column:
    return Column(heading=heading, key=key, show=_number, right=True, wide=wide, drop=drop)


def _part(heading: str, key: str, *, wide: bool = False, drop: int = 0) -> Column:
    return Column(heading=heading, key=key, show=_percent, right=True, wide=wide, drop=drop)


def _percentiles(what: str, key: str, column: Callable[..., Column] = _time) -> tuple[Column, ...]:
    return tuple(
        column(f"{what} {name}", f"{key}.{name}", wide=True)
        for name in ("p50", "p95", "p99", "max")
    )


_NAMES = (Column(heading="policy", key="policy"), Column(heading="pool", key="pool"))
_COSTS = (_time("save s", "save_s", wide=True), _time("restore s", "restore_s", wide=True))
#: A narrow terminal shows the most important ones: ``drop``.
_FIGURES = (
    _count("jobs", "jobs", drop=2),
    _count("refused", "refused", wide=True),
    _count("cut short", "cut_short", wide=True),
    _time("mean delay s", "delay_s.mean"),
    _time("± s", "delay_deviation_s", wide=True, drop=4),
    _time("worst copy", "delay_worst_s", wide=True, drop=8),
    _time("p50", "delay_s.p50", wide=True),
    _time("p95 s", "delay_s.p95", drop=7),
    _time("p99", "delay_s.p99", wide=True),
    _time("max s", "delay_s.max", drop=10),
    _time("mean queueing s", "queue_s.mean", wide=True),
    *_percentiles("queueing", "queue_s"),
    _time("mean JCT s", "jct_s.mean", wide=True),
    *_percentiles("JCT", "jct_s"),
    _count("mean slowdown", "bounded_slowdown.mean", wide=True),
    *_percentiles("slowdown", "bounded_slowdown", _count),
    _time("evicted", "preemptions", drop=6),
    _count("per job", "preemptions_per_job.mean", wide=True),
    _count("most of one job", "preemptions_per_job.max", wide=True),
    _time("lost GPU-s", "lost_gpu_s", wide=True),
    _part("lost work", "lost_work", drop=5),
    _time("overhead GPU-s", "overhead_gpu_s", wide=True),
    _part("overhead", "overhead", wide=True),
    _part("used", "utilisation", drop=9),
    Column(heading="unmet h", key="violation_s", show=_hours, right=True, drop=3),
)
#: What a table also shows of several saving costs, and of copies of the trace.
_OF_COSTS = frozenset(("save_s",))
_OF_COPIES = frozenset(("delay_deviation_s", "delay_worst_s"))
_ALONE = (
    _time("alone s", "alone.delay_s.mean", drop=1),
    _time("worse off", "alone.worse_off", drop=1),
    _time("by s (mean)", "alone.worse_off_by_s.mean", wide=True),
    _time("by s (max)", "alone.worse_off_by_s.max", wide=True),
)
_OVER_TIME = (
    Column(heading="policy", key="policy"),
    Column(heading="pool", key="pool"),
    _time("time s", "time_s"),
    _count("jobs waiting", "waiting"),
    _count("GPUs held", "held_gpus", drop=1),
    _part("utilisation", "utilisation", drop=2),
)


@command(app)
def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            help="Jobs: a .csv, .jsonl, .swf or .parquet file, the first three also with .gz."
        ),
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
    save_s: Annotated[
        str,
        typer.Option(
            metavar="SECONDS[,...]",
            help="Seconds that saving a state takes; of several, each policy runs with each.",
        ),
    ] = "60",
    restore_s: Annotated[
        str,
        typer.Option(
            metavar="SECONDS[,...]",
            help="Seconds that loading a state takes: one, or one for each of --save-s.",
        ),
    ] = "120",
    start_s: Annotated[float, typer.Option(help="Seconds that starting an agent takes.")] = 0.0,
    savable: Annotated[
        float | None,
        typer.Option(
            help="The share of the jobs that save their state, 0 to 1. Default: as the trace says."
        ),
    ] = None,
    load: Annotated[
        float, typer.Option(help="Submissions come so many times as fast as in the trace.")
    ] = 1.0,
    copies: Annotated[
        int, typer.Option(min=0, help="Also so many copies of the trace with shifted submissions.")
    ] = 0,
    jitter_s: Annotated[
        float, typer.Option(help="By how many seconds at most submissions of copies are shifted.")
    ] = 1800.0,
    seed: Annotated[int, typer.Option(help="Seed of the first copy.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Simulations at the same time.")] = 1,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Also report who is worse off than with the pool alone."),
    ] = False,
    every_s: Annotated[
        float | None,
        typer.Option(help="List waiting and utilisation over time instead, every so many seconds."),
    ] = None,
    node_changes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Nodes that die, join or are drained: .csv with at_s, node, event."
        ),
    ] = None,
    picture: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw waiting, delays and utilisation: .png or .svg."),
    ] = None,
    frontier: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Draw the mean delay and what evictions cost: .png or .svg."
        ),
    ] = None,
) -> None:
    """Run a trace of jobs in virtual time, and report how long they wait under each policy."""
    from schedulemesh import sim
    from schedulemesh.sim.frontier_picture import draw_frontier
    from schedulemesh.sim.picture import check, draw
    from schedulemesh.sim.policy import read_policies

    for path in filter(None, (picture, frontier)):
        check(path)
    timings = _timings(save_s, restore_s, start_s)
    jobs, remark = _workload(trace, only, load, savable)
    nodes = sim.read_nodes(cluster)
    files = [*([policy] if policy else []), *(compare or [])]
    policies = read_policies(files) or [sim.Policy()]
    changes = [] if node_changes is None else sim.read_node_changes(node_changes)
    by_timing = [
        sim.compare(
            jobs,
            nodes,
            policies,
            timing,
            copies=copies,
            jitter_s=jitter_s,
            seed=seed,
            processes=processes,
            node_changes=changes,
            alone=alone,
        )
        for timing in timings
    ]
    comparisons = [one for of_policy in zip(*by_timing, strict=True) for one in of_policy]
    if picture is not None:
        draw(by_timing[0], picture)
    if frontier is not None:
        draw_frontier(comparisons, frontier)
    if every_s is not None:
        emit(_over_time(by_timing[0], every_s), output)
    else:
        emit(_figures(comparisons, alone=alone, costs=len(timings) > 1), output)
    if remark:
        note(remark)


def _workload(
    trace: str, pool: str | None, load: float, savable: float | None
) -> tuple[list[Job], str]:
    """The jobs of a trace (``pool``: of one pool of it), with their submissions ``load`` times as fast and
    ``savable`` as the share of those that save their state (None: as it says), and a remark about those that
    are left out.
    """
    from schedulemesh import sim
    from schedulemesh.sim.traces import read_counted

    every, not_run = read_counted(trace)
    jobs = sim.with_load(_selected(every, pool), load)
    if savable is not None:
        jobs = sim.with_savable(jobs, savable)
    if not_run:
        return jobs, f"{not_run} jobs of {trace} did not run, and are left out"
    return jobs, "" if every else f"{trace} has no jobs"


def _selected(jobs: list[Job], pool: str | None) -> list[Job]:
    """The jobs of a pool; None: all."""
    selected = [job for job in jobs if pool in (None, job.pool)]
    if not selected and jobs:
        pools = sorted({job.pool for job in jobs})
        if pools == [""]:
            raise InvalidRequestError(
                f"--only is {pool!r}, and no job of the trace has a pool (column group_or_vc); leave it out"
            )
        raise InvalidRequestError(
            f"--only is {pool!r}{nearest(str(pool), pools)}; the pools of the trace are "
            f"{', '.join(map(repr, pools))}"
        )
    return selected


def _timings(save_s: str, restore_s: str, start_s: float) -> list[Timing]:
    """The times of each saving cost."""
    from schedulemesh.sim import Timing

    saves, restores = _numbers(save_s, "--save-s"), _numbers(restore_s, "--restore-s")
    if len(restores) == 1:
        restores *= len(saves)
    if len(restores) != len(saves):
        raise InvalidRequestError(
            f"--restore-s has {len(restores)} values and --save-s {len(saves)}; give one for each, or one"
        )
    return [
        Timing(save_s=save, restore_s=restore, start_s=start_s)
        for save, restore in zip(saves, restores, strict=True)
    ]


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequestError(
            f"{option} is {text!r}; give seconds, or several divided by commas, such as 0,60,300"
        ) from None


def _figures(comparisons: list[Comparison], *, alone: bool, costs: bool) -> Listing:
    """``costs``: whether there are several saving costs, which are shown then."""
    rows = [_row(one, pool) for one in comparisons for pool in one.reports[0]]
    figures = [*_NAMES, *_COSTS, *_FIGURES]
    copies = any(len(one.reports) > 1 for one in comparisons)
    shown = (_OF_COSTS if costs else frozenset()) | (_OF_COPIES if copies else frozenset())
    columns = [replace(one, wide=one.wide and one.key not in shown) for one in figures]
    return Listing(
        kind="figures",
        rows=rows,
        columns=(*columns, *(_ALONE if alone else ())),
        name="policy",
        notes=_refusals(comparisons),
    )


def _refusals(comparisons: list[Comparison]) -> tuple[str, ...]:
    """How many jobs of the trace each policy refused, and why the first one."""
    sentences: list[str] = []
    for one in comparisons:
        jobs, refused = one.reports[0][""].jobs, one.reports[0][""].refused
        if refused:
            were = "job was" if refused == 1 else "jobs were"
            sentence = f"{one.policy}: {refused} {were} refused, and {jobs} ran; the first is"
            sentences.append(f"{sentence} {one.first_refusal}")
    return tuple(dict.fromkeys(sentences))


def _over_time(comparisons: list[Comparison], every_s: float) -> Listing:
    import msgspec

    rows: list[Row] = [
        {"policy": one.policy, **msgspec.to_builtins(interval), "pool": interval.pool or "(all)"}
        for one in comparisons
        for interval in one.timeline.over_time(every_s)
    ]
    return Listing(
        kind="intervals", rows=rows, columns=_OVER_TIME, name="policy", notes=_refusals(comparisons)
    )


def _row(comparison: Comparison, pool: str) -> Row:
    delay = comparison.figure("delay_s.mean", pool)
    return {
        "policy": comparison.policy,
        "pool": pool or "(all)",
        "save_s": comparison.timing.save_s,
        "restore_s": comparison.timing.restore_s,
        "delay_deviation_s": delay.deviation,
        "delay_worst_s": delay.worst,
        **comparison.mean(pool),
    }
