"""The commands status and list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from schedulemesh.cli.columns import AGENTS, pool_columns, wide
from schedulemesh.cli.command import Format, Select, Target, View, command
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import repeat, show
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.tasks import task_listing
from schedulemesh.cli.texts import local_time, text

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

#: Agents and tasks that a table has.
_SHOWN = 20
_SCHEDULERS = (
    Column(heading="scheduler", key="name"),
    Column(heading="namespace", key="namespace"),
    Column(heading="answers", key="answers", show=lambda answers: text(bool(answers))),
    Column(heading="started", key="started_at", show=local_time),
    Column(heading="version", key="version"),
    Column(heading="running", key="running_tasks", right=True),
    Column(heading="queued", key="queued_tasks", right=True),
    wide("node", "node_id"),
    wide("detached", "detached"),
    wide("error", "error"),
)


@command(app)
def status(target: Target, view: View) -> None:
    """Show a scheduler: its process, pools, agents and tasks."""
    most = _SHOWN if view.output in (Format.TABLE, Format.WIDE) else None
    show(target, view, lambda gateway: overview(gateway, most))


def overview(gateway: Gateway, most: int | None) -> Record:
    """A scheduler with what it has. ``most``: of agents and of tasks, those that run first; None: all."""
    from schedulemesh.api.agents import ListAgents
    from schedulemesh.api.cluster import GetAbout
    from schedulemesh.api.pools import ListPools
    from schedulemesh.api.tasks import ListTasks
    from schedulemesh.protocol.answers import Details, Listed

    about = gateway.ask(GetAbout(), Details).facts
    pools = gateway.ask(ListPools(), Listed).rows
    if most is None:
        agents = gateway.ask(ListAgents(), Listed).rows
        return overview_of(about, pools, agents, gateway.ask(ListTasks(), Listed).rows)
    agents, all_agents = _firsts(gateway, "agents", (("name", False),), most)
    tasks, all_tasks = _firsts(gateway, "tasks", (("phase", True), ("task_id", False)), most)
    notes = [
        phrase(code, shown=most, total=total)
        for code, total in (("remark_agents_cut", all_agents), ("remark_tasks_cut", all_tasks))
        if total > most
    ]
    return replace(overview_of(about, pools, agents, tasks), notes=tuple(notes))


def _firsts(
    gateway: Gateway, listing: str, order: tuple[tuple[str, bool], ...], most: int
) -> tuple[list[dict[str, Any]], int]:
    """The first rows of a listing in an order, and how many there are."""
    from schedulemesh.api.pages import ListPage, PageQuery
    from schedulemesh.protocol.answers import Details

    page = PageQuery(order=order, limit=most)
    facts = gateway.ask(ListPage(listing=listing, page=page), Details).facts
    return facts["items"], facts["total"]


def overview_of(
    about: dict[str, Any],
    pools: list[dict[str, Any]],
    agents: list[dict[str, Any]],
    tasks: list[dict[str, Any]],
) -> Record:
    """The overview, from what the scheduler answers."""
    lines = [
        *headline(about),
        ("supervisor", phrase("cell_process", epoch=about["epoch"], pid=about["pid"])),
        ("journal", str(about["journal"])),
    ]
    facts = {key: value for key, value in about.items() if key not in ("pools", "agents")}
    listings = (
        Listing(kind="pools", rows=pools, columns=pool_columns(pools)),
        Listing(kind="agents", rows=agents, columns=AGENTS),
        task_listing(tasks),
    )
    return Record(facts=facts, lines=lines, listings=listings)


def headline(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which scheduler it is, and how many tasks it has."""
    running, queued = about["running_tasks"], about["queued_tasks"]
    name = phrase("cell_in_namespace", name=about["name"], namespace=about["namespace"])
    return [("scheduler", name), ("tasks", phrase("cell_tasks", running=running, queued=queued))]


@command(app, "list")
def list_schedulers(target: Target, view: View, select: Select) -> None:
    """List the schedulers of a Ray cluster, those that end with their job included, and whether they answer.

    With tokens, a scheduler answers those it knows.
    """
    from schedulemesh.cli.ray_gateway import on_ray
    from schedulemesh.cli.selection import selected
    from schedulemesh.core.client.scheduler_list import list_schedulers

    def look() -> Listing:
        rows = list_schedulers()["schedulers"]
        return selected(Listing(kind="schedulers", rows=rows, columns=_SCHEDULERS), select)

    with on_ray(target.address):
        repeat(view, look)
