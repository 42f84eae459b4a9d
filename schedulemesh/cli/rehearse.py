"""The command rehearse: what a period of the own history would have been under another policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Output, Since, command, note
from schedulemesh.cli.language import spoken
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.texts import duration, moment
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.domain.sentences import Sentence
    from schedulemesh.sim.rehearsal.what_if import Rehearsal

app = typer.Typer()


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
    codes: Annotated[
        bool,
        typer.Option("--codes", help="Remarks as codes with parameters, a line of JSON each."),
    ] = False,
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
    for remark in rehearsal.remarks_on(rehearsed):
        note(_as_code(remark) if codes else spoken(remark))


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


def _as_code(remark: Sentence) -> str:
    """A remark for a program that puts it into words later, such as the page."""
    import msgspec

    return msgspec.json.encode(remark).decode()


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
