"""The command windows: list, create and delete windows, at which nodes are maintained or reserved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.columns import WINDOWS
from schedulemesh.cli.command import Output, Select, Target, View, command, group
from schedulemesh.cli.completion import complete_nodes
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Listing
from schedulemesh.cli.texts import seconds
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()
windows = typer.Typer()
app.add_typer(windows, name="windows")


@group(windows)
def list_windows(target: Target, view: View, select: Select) -> None:
    """List when nodes are maintained or reserved: the windows that are open or to come."""
    from schedulemesh.api.windows import ListWindows, WindowInfo
    from schedulemesh.protocol.answers import Listed

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(ListWindows(), Listed).rows
        return Listing(kind="windows", rows=rows, columns=WINDOWS, row=WindowInfo)

    show(target, view, listing, select)


@command(windows, "create")
def create(
    target: Target,
    output: Output,
    window: Annotated[str, typer.Argument(help="The name of the window.")],
    start: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="When it opens, with the offset from UTC: 2026-12-05T22:00+01:00."
        ),
    ],
    duration: Annotated[
        str, typer.Option("--duration", metavar="DURATION", help="How long it is open, such as 4h.")
    ],
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="A node, by host name, address, or id or its beginning; may be repeated.",
            autocompletion=complete_nodes,
        ),
    ] = None,
    node_label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=CONDITION",
            help="The nodes with this label, such as rack=r1 or zone=in(a,b); may be repeated.",
        ),
    ] = None,
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="Every node.")] = False,
    gpus: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Reserve so many GPUs, on nodes that the scheduler chooses: of any or with --node-label.",
        ),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(metavar="N", help="Reserve so many CPUs in the same way.")
    ] = None,
    repeat: Annotated[
        str | None, typer.Option(metavar="daily|weekly", help="That it comes again, and when.")
    ] = None,
    notice: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="From so long before it on, no task starts there whose end is not known.",
        ),
    ] = "1h",
    comment: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    for_pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POOL", help="Reserve the nodes for tasks of this pool; may be repeated."
        ),
    ] = None,
    for_owner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OWNER", help="Reserve the nodes for tasks of this owner; may be repeated."
        ),
    ] = None,
    for_label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Reserve the nodes for tasks with this label; of several, with all.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of a different window of this name.")
    ] = False,
) -> int:
    """Announce maintenance of nodes, or a reservation: nothing else reaches into it, or starts in it."""
    from schedulemesh.api.values import client_name
    from schedulemesh.api.windows import CreateWindow
    from schedulemesh.cli.changes import change_each, changed_result, pairs
    from schedulemesh.domain.names import parse_name
    from schedulemesh.protocol.answers import Response

    parse_name(window, "the window's name")
    chosen_by_amount = gpus is not None or cpus is not None
    if not chosen_by_amount and sum(map(bool, (nodes, node_label, all_nodes))) != 1:
        raise InvalidRequestError(
            "a window is for nodes that are named with --node, those with --node-label, or --all-nodes; give "
            "one of the three"
        )
    if chosen_by_amount and not (for_pool or for_owner or for_label):
        raise InvalidRequestError(
            "an amount is reserved for somebody; give --for-pool, --for-owner or --for-label"
        )
    labels = pairs(node_label or (), "--node-label", "a condition is LABEL=CONDITION")
    amount = {kind: n for kind, n in (("gpu", gpus), ("cpu", cpus)) if n is not None}
    reserved_for = pairs(for_label or (), "--for-label", "a label is LABEL=VALUE")

    def request(name: str) -> CreateWindow:
        return CreateWindow(
            name=name,
            start=start,
            duration_s=seconds(duration, "--duration"),
            repeat=repeat,
            nodes=tuple(nodes) if nodes else None,
            node_labels=labels or None,
            all_nodes=all_nodes,
            resources=amount or None,
            notice_s=seconds(notice, "--notice"),
            comment=comment,
            pools=tuple(for_pool) if for_pool else None,
            owners=tuple(for_owner) if for_owner else None,
            labels=reserved_for or None,
            replace=replace,
            client=client_name(),
        )

    return change_each(target, output, [window], request, Response, changed_result)


@command(windows, "delete")
def delete(
    target: Target,
    output: Output,
    names: Annotated[list[str], typer.Argument(help="The names of windows.")],
) -> int:
    """Delete windows; nodes that they close open again."""
    from schedulemesh.api.values import client_name
    from schedulemesh.api.windows import DeleteWindow
    from schedulemesh.cli.changes import change_each, changed_result
    from schedulemesh.protocol.answers import Response

    def request(name: str) -> DeleteWindow:
        return DeleteWindow(name=name, client=client_name())

    return change_each(target, output, names, request, Response, changed_result)
