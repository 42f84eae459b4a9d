"""The commands agents, nodes, cordon, uncordon and health."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from schedulemesh.cli.columns import AGENTS, EXTERNAL, node_columns
from schedulemesh.cli.command import Output, Select, Target, View, command
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.selection import listed
from schedulemesh.cli.texts import names, seconds

app = typer.Typer()

Nodes = Annotated[
    list[str], typer.Argument(help="Host names, addresses, or ids or the beginnings of ids.")
]

_PROBLEMS = (
    Column(heading="agent", key="agent_name"),
    Column(heading="pool", key="pool_name"),
    Column(heading="problem", key="problem"),
    Column(heading="action", key="action"),
    Column(heading="tasks", key="tasks", show=names),
    Column(heading="error", key="error"),
)


@command(app, "agents")
def list_agents(
    target: Target,
    view: View,
    select: Select,
    pool: Annotated[str | None, typer.Option(help="Only those of this pool.")] = None,
) -> None:
    """List the agents: what they hold, and the tasks that they run."""
    from schedulemesh.api.agents import AgentListing, ListAgents

    def listing(rows: list[dict[str, object]]) -> Listing:
        return Listing(kind="agents", rows=rows, columns=AGENTS, row=AgentListing)

    request = ListAgents(pool_name=pool)
    show(target, view, lambda g: listed(g, request, listing, select, "names"), select)


@command(app, "nodes")
def list_nodes(
    target: Target,
    view: View,
    select: Select,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(help="Only these: host names, addresses, ids or the beginnings of ids."),
    ] = None,
) -> None:
    """List the nodes: what is free, what other Ray work uses, and which are closed."""
    from schedulemesh.api.nodes import ListNodes, NodeInfo
    from schedulemesh.protocol.answers import Listed

    def listing(rows: list[dict[str, Any]]) -> Listing:
        chosen = _named_nodes(rows, nodes) if nodes else rows
        return Listing(
            kind="nodes", rows=chosen, columns=node_columns(chosen), row=NodeInfo, name="node_id"
        )

    show(target, view, lambda g: listing(g.ask(ListNodes(), Listed).rows), select)


def _named_nodes(rows: list[dict[str, Any]], nodes: list[str]) -> list[dict[str, Any]]:
    """The rows of these nodes. Raises RefusedError for a name that means none, or several."""
    from schedulemesh.cli.exits import RefusedError
    from schedulemesh.domain.node_names import nodes_named, unknown_node
    from schedulemesh.domain.reasons import Reason
    from schedulemesh.engine.messages.outcomes import Refused

    names = {row["node_id"]: (row["host"], row["address"]) for row in rows}
    chosen = set()
    for name in nodes:
        named = nodes_named(name, names)
        if len(named) != 1:
            error = unknown_node(name, named, names)
            raise RefusedError(Refused(reason=Reason.NODE_NOT_FOUND, error_text=error))
        chosen.add(named[0])
    return [row for row in rows if row["node_id"] in chosen]


@command(app)
def external(target: Target, view: View, select: Select) -> None:
    """List the Ray jobs that hold or wait for something outside of the scheduler."""
    from schedulemesh.api.nodes import ExternalWork, ListExternalUsage
    from schedulemesh.protocol.answers import Listed

    def listing(rows: list[dict[str, object]]) -> Listing:
        return Listing(
            kind="other Ray work", rows=rows, columns=EXTERNAL, row=ExternalWork, name="job_id"
        )

    show(target, view, lambda g: listing(g.ask(ListExternalUsage(), Listed).rows), select)


@command(app)
def cordon(target: Target, output: Output, nodes: Nodes) -> int:
    """Close nodes to new agents; what runs there stays."""
    return _cordon(target, output, nodes, cordoned=True)


@command(app)
def uncordon(target: Target, output: Output, nodes: Nodes) -> int:
    """Open nodes to new agents again."""
    return _cordon(target, output, nodes, cordoned=False)


def _cordon(target: Target, output: Output, nodes: list[str], *, cordoned: bool) -> int:
    from schedulemesh.api.nodes import CordonNode
    from schedulemesh.cli.changes import change_each
    from schedulemesh.domain.sentences import say
    from schedulemesh.protocol.answers import Response

    def request(node_id: str) -> CordonNode:
        return CordonNode(node_id=node_id, cordoned=cordoned)

    done = say("result_cordoned" if cordoned else "result_open")
    return change_each(target, output, nodes, request, Response, lambda _: done)


@command(app)
def health(
    target: Target,
    output: Output,
    timeout: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long an agent is silent before it is asked."),
    ] = "2m",
) -> int:
    """Check every agent, and rebuild those that are dead or do not answer; fails if one was removed."""
    from schedulemesh.api.agents import EnsureAgentHealth
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Details

    with gateway_to(target) as gateway:
        answer = gateway.ask(
            EnsureAgentHealth(timeout_s=seconds(timeout, "--timeout")), Details
        ).facts
    facts = {name: answer[name] for name in ("checked", "healthy", "rebuilt", "removed")}
    problems = Listing(kind="details", rows=answer["details"], columns=_PROBLEMS, name="agent_name")
    emit(Record(facts={"name": gateway.name, **facts}, listings=(problems,)), output)
    return 1 if answer["removed"] else 0
