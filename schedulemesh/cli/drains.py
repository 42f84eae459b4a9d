"""The commands drain, undrain and drains, for nodes and pools that are to be empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.columns import DRAINS
from schedulemesh.cli.command import Output, Select, Target, View, command
from schedulemesh.cli.completion import complete_nodes
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Listing
from schedulemesh.cli.texts import seconds
from schedulemesh.domain.sentences import Sentence, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedulemesh.cli.gateway import Gateway
    from schedulemesh.protocol.answers import Response

app = typer.Typer()

Names = Annotated[
    list[str],
    typer.Argument(
        help="Host names, addresses, or ids or the beginnings of ids.",
        show_default=False,
        autocompletion=complete_nodes,
    ),
]
Pools = Annotated[bool, typer.Option("--pool", help="The names are those of pools.")]


@command(app)
def drain(
    target: Target,
    output: Output,
    names: Names,
    pool: Pools = False,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="When all should have ended, such as 30m from now; tasks that are expected to end by then "
            "may finish.",
        ),
    ] = None,
) -> int:
    """Start nothing new on these nodes, and save and move what runs there."""
    deadline_s = None if deadline is None else seconds(deadline, "--deadline")
    return _change(
        target, output, names, lambda _: say("result_draining"), pool=pool, deadline=deadline_s
    )


@command(app)
def undrain(target: Target, output: Output, names: Names, pool: Pools = False) -> int:
    """End the drain of these nodes."""
    return _change(target, output, names, _opened, pool=pool, drained=False)


def _opened(answer: Response) -> Sentence:
    """What became of a node or a pool whose drain was to end."""
    from schedulemesh.domain.reasons import Change

    if getattr(answer.outcome, "change", None) is Change.UNCHANGED:
        return say("result_not_drained")
    warned = getattr(answer.outcome, "warning_texts", ())
    return say("result_drain_ended" if warned else "result_open_again")


@command(app)
def drains(target: Target, view: View, select: Select) -> None:
    """Show the drains in progress, and what is left of each."""
    from schedulemesh.api.nodes import DrainInfo, GetDrainStatus
    from schedulemesh.protocol.answers import Listed

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(GetDrainStatus(), Listed).rows
        named = [{"name": row["node_id"] or row["pool_name"], **row} for row in rows]
        return Listing(kind="drains", rows=named, columns=DRAINS, row=DrainInfo)

    show(target, view, listing, select)


def _change(
    target: Target,
    output: Output,
    names: list[str],
    done: Callable[[Response], Sentence],
    *,
    pool: bool,
    drained: bool = True,
    deadline: float | None = None,
) -> int:
    """Start or end the drain of each."""
    from schedulemesh.api.nodes import Drain
    from schedulemesh.api.values import client_name
    from schedulemesh.cli.changes import change_each
    from schedulemesh.protocol.answers import Response

    def request(name: str) -> Drain:
        return Drain(
            node_id=None if pool else name,
            pool_name=name if pool else None,
            drained=drained,
            deadline_s=deadline,
            client=client_name(),
        )

    return change_each(target, output, names, request, Response, done)
