"""The command audit: who changed what, when, and from where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Select, Since, Target, View, command
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.texts import data, local_time, moment

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()


def _who(row: Row) -> str:
    return str(row["token"] or "(no token)")


def _about(row: Row) -> str:
    request: dict[str, Any] = row["request"] or {}
    named = ("name", "pool_name", "task_id", "agent_name", "node_id", "names", "task_ids")
    given = [request[key] for key in named if request.get(key)]
    if isinstance(request.get("spec"), dict):
        given.append(request["spec"].get("name"))
    return data(given[0]) if given else ""


def _outcome(row: Row) -> str:
    return str(row["reason"] or row["outcome"])


_CHANGES = (
    Column(heading="time", key="at", show=local_time),
    Column(heading="who", key="", show=_who),
    Column(heading="call", key="call"),
    Column(heading="about", key="", show=_about),
    Column(heading="outcome", key="", show=_outcome),
    Column(heading="number", key="number", wide=True, right=True),
    Column(heading="token", key="token", wide=True),
    Column(heading="role", key="role", wide=True),
    Column(heading="owner", key="owner", wide=True),
    Column(heading="from", key="address", wide=True),
    Column(heading="request", key="request", show=data, wide=True),
    Column(heading="before", key="before", show=data, wide=True),
    Column(heading="after", key="after", show=data, wide=True),
    Column(heading="error", key="error", wide=True),
)


@command(app)
def audit(
    target: Target,
    view: View,
    select: Select,
    since: Since = None,
    who: Annotated[str | None, typer.Option(help="Only those with this token.")] = None,
    call: Annotated[
        str | None, typer.Option(help="Only those of this name, such as change_policy.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only those that are done, refused or open.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=20_000, help="The last so many.")] = 50,
) -> None:
    """Show who changed what, when, and from where; changes that were refused too."""
    from schedulemesh.protocol.answers import Listed
    from schedulemesh.protocol.audit_requests import QueryAudit

    begin = None if since is None else moment(since)
    request = QueryAudit(token=who, call=call, outcome=outcome, since=begin, limit=limit)

    def look(gateway: Gateway) -> Listing:
        rows = gateway.ask(request, Listed).rows
        return Listing(kind="changes", rows=rows, columns=_CHANGES, name="number")

    show(target, view, look, select)
