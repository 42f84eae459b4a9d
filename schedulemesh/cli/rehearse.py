"""The command rehearse: what a period of the own history would have been under another policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Output, Since, command, note
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.texts import duration, local_time, moment
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.sim.rehearsal.decisions import Check, Difference
    from schedulemesh.sim.rehearsal.what_if import Rehearsal

app = typer.Typer()

#: Differences, and tasks at either end of the list, that are shown.
_SHOWN = 5


def _pair(
    heading: str, key: str, show: Any = str, *, wide: bool = False, drop: int = 0
) -> tuple[Column, Column]:
    """The columns of a figure in the history and in the rehearsal."""
    recorded = Column(
        heading=heading, key=f"recorded.{key}", show=show, right=True, wide=wide, drop=drop
    )
    return recorded, replace(recorded, heading="→", key=f"rehearsed.{key}")


def _hours(value: object) -> str:
    return f"{float(str(value)):,.1f}"


_POOLS = (
    Column(heading="pool", key="pool"),
    *_pair("tasks started", "started", wide=True),
    *_pair("ended", "ended", wide=True),
    *_pair("mean wait", "waited_s.mean", duration),
    *_pair("p95 wait", "waited_s.p95", duration, drop=2),
    *_pair("evicted", "preemptions", drop=1),
    *_pair("lost GPU-h", "lost_gpu_hours", _hours, drop=3),
    *_pair("GPU-h", "gpu_hours", _hours, wide=True),
)
_TASKS = (
    Column(heading="task", key="task_id"),
    Column(heading="pool", key="pool"),
    Column(heading="owner", key="owner", drop=1),
    Column(heading="waited", key="recorded_s", show=duration, right=True),
    Column(heading="would wait", key="rehearsed_s", show=duration, right=True),
)


@command(app)
def rehearse(
    state: Annotated[
        str,
        typer.Argument(
            help="The scheduler's state folder, its .sqlite file, or the URL of its database."
        ),
    ],
    output: Output,
    since: Since = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Pools and policies from then on: a file as for apply."),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="±N", help="So many nodes more, like the largest, or less."),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=GPUS", help="Another quota of GPUs of a pool. Repeatable."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The scheduler, where there are several.")
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="Its Ray namespace, in a database.")
    ] = "schedulemesh",
    tasks: Annotated[
        bool, typer.Option("--tasks", help="List every task instead of pools.")
    ] = False,
    node_strategy: Annotated[
        str, typer.Option(help="The placement strategy that the scheduler uses.")
    ] = "bin_pack",
) -> None:
    """Tell what a period of a scheduler's own history would have been under another policy.

    The history is only read. Without any change this says how exactly it can be rehearsed.
    """
    from schedulemesh.sim import rehearsal

    begin = None if since is None else moment(since)
    changes = rehearsal.Changes(
        policy=_declared(policy), pools=dict(map(_quota, pool or ())), nodes=_nodes(nodes)
    )
    recording = rehearsal.open_history(state, begin, name, namespace)
    rehearsed = rehearsal.rehearse(recording, changes, begin, node_strategy=node_strategy)
    emit(_task_listing(rehearsed) if tasks else _pool_listing(rehearsed), output)
    for remark in (*_remarks(rehearsed), *_check_remarks(rehearsed.check)):
        note(remark)


def _pool_listing(rehearsed: Rehearsal) -> Listing:
    import msgspec

    rows: list[Row] = [
        {
            "pool": name or "(all)",
            "recorded": msgspec.to_builtins(period),
            "rehearsed": msgspec.to_builtins(rehearsed.rehearsed[name]),
        }
        for name, period in rehearsed.recorded.items()
    ]
    return Listing(kind="pools", rows=rows, columns=_POOLS, name="pool")


def _task_listing(rehearsed: Rehearsal) -> Listing:
    import msgspec

    rows = [msgspec.to_builtins(one) for one in rehearsed.waits]
    return Listing(kind="tasks", rows=rows, columns=_TASKS, name="task_id")


def _remarks(rehearsed: Rehearsal) -> list[str]:
    """The period, and who gains and loses most."""
    changes = [(one.rehearsed_s - one.recorded_s, one) for one in rehearsed.waits]
    less = [one for gained, one in changes if gained < -1.0]
    more = [one for gained, one in reversed(changes) if gained > 1.0]
    span = f"{local_time(rehearsed.since)} to {local_time(rehearsed.until)}"
    remarks = [f"{span}: {len(less)} tasks would have waited less, {len(more)} more"]
    if rehearsed.refused:
        remarks.append(
            f"{rehearsed.refused} submissions would have been refused; the first is {rehearsed.first_refusal}"
        )
    for what, some in (("less", less), ("more", more)):
        names = ", ".join(
            f"{one.task_id} ({duration(one.recorded_s)} → {duration(one.rehearsed_s)})"
            for one in some[:_SHOWN]
        )
        if names:
            remarks.append(f"{what}: {names}")
    return remarks


def _check_remarks(check: Check) -> list[str]:
    """How exact the rehearsal is, and why it is not."""
    part = 100.0 * check.same / check.decisions if check.decisions else 100.0
    same = f"{check.same} of {check.decisions} decisions are the same ({part:.1f} %)"
    remarks = [f"under the policy that was in force {same}"]
    remarks += [f"differs: {_difference(one)}" for one in check.differences[:_SHOWN]]
    remarks += [f"not rehearsed: {count} × {what}" for what, count in check.left_out.items()]
    return remarks


def _difference(one: Difference) -> str:
    def when(at: float | None) -> str:
        return "never" if at is None else local_time(at)

    what = one.decision
    how = f" ({what.how})" if what.how else ""
    return (
        f"{what.key}, attempt {what.attempt}, {what.kind}{how}:"
        f" {when(one.recorded_at)} in the history, {when(one.rehearsed_at)} rehearsed"
    )


def _declared(path: str | None) -> dict[str, Any]:
    """What a policy file declares. Raises InvalidRequestError."""
    if path is None:
        return {}
    from schedulemesh.sim.policy import read_declared

    return read_declared(path)


def _quota(text: str) -> tuple[str, float]:
    name, _, gpus = text.partition("=")
    try:
        return name, float(gpus)
    except ValueError:
        raise InvalidRequestError(
            f"--pool is {text!r}; it names a pool and its GPUs, such as research=64"
        ) from None


def _nodes(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        raise InvalidRequestError(f"--nodes is {text!r}; it is a number such as +4 or -2") from None
