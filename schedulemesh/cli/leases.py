"""The commands leases and groups: placement groups that are held, by leases and by pools."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.columns import amounts_column, priority, wide
from schedulemesh.cli.command import Output, Select, Target, Tasks, View, command, group
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.selection import listed
from schedulemesh.cli.texts import amounts, duration, labels, local_time, text, time_until
from schedulemesh.cli.wording import node

if TYPE_CHECKING:
    from schedulemesh.api.leases import ReleaseLease, RenewLease
    from schedulemesh.cli.gateway import Gateway
    from schedulemesh.protocol.answers import LeaseView

app = typer.Typer()
leases = typer.Typer()
app.add_typer(leases, name="leases")

_LEASES = (
    Column(heading="lease", key="task_id"),
    Column(heading="owner", key="owner"),
    Column(heading="pool", key="pool_name"),
    Column(heading="prio", key="priority", show=priority, right=True),
    Column(heading="state", key="phase"),
    amounts_column("holds or asks", "resources"),
    Column(heading="since", key="started_at", show=local_time),
    wide("node", "node_id", node),
    wide("flavor", "flavor"),
    wide("limit in", "limit_at", time_until),
    wide("reason", "reason"),
    wide("labels", "labels", labels),
)
_PARTS = (
    Column(heading="placement group", key="id"),
    Column(heading="strategy", key="strategy"),
    Column(heading="bundles", key="bundles", show=lambda bundles: "; ".join(map(amounts, bundles))),
)
_GROUPS = (
    Column(heading="pool", key="pool_name"),
    Column(heading="group", key="name"),
    Column(heading="kept", key="reserved"),
    Column(heading="phase", key="phase"),
    Column(heading="bundles", key="bundles", show=lambda bundles: "; ".join(map(amounts, bundles))),
    Column(
        heading="nodes", key="node_ids", show=lambda ids: ", ".join(dict.fromkeys(map(node, ids)))
    ),
    Column(heading="agent", key="agent", show=text),
    Column(heading="idle", key="idle_s", show=duration, right=True),
    wide("strategy", "placement_strategy"),
    wide("id", "id"),
)


@group(leases)
def list_leases(target: Target, view: View, select: Select) -> None:
    """List the leases that hold placement groups or wait for them."""
    from schedulemesh.api.tasks import ListTasks, TaskListing

    def listing(rows: list[dict[str, Any]]) -> Listing:
        rows = [row for row in rows if row.get("kind") == "lease"]
        return Listing(kind="leases", rows=rows, columns=_LEASES, row=TaskListing, name="task_id")

    show(target, view, lambda g: listed(g, ListTasks(), listing, select), select)


@command(leases, "get")
def get(
    target: Target, view: View, lease: Annotated[str, typer.Argument(help="The id of a lease.")]
) -> None:
    """Show how a lease stands, with the ids of its placement groups in Ray."""
    from schedulemesh.api.leases import WatchLease
    from schedulemesh.protocol.answers import LeaseView

    show(target, view, lambda g: _record(lease, g.ask(WatchLease(task_id=lease), LeaseView)))


def _record(name: str, lease: LeaseView) -> Record:
    from schedulemesh.cli.wording import in_commands

    facts = {
        "task_id": name,
        "state": lease.state,
        "pool_name": lease.pool_name,
        "grace_s": lease.grace_s,
        "end_reason": lease.reason,
        "end_error": in_commands(lease.error),
    }
    parts = Listing(kind="placement_groups", rows=_parts(lease), columns=_PARTS, name="id")
    return Record(facts=facts, name="task_id", listings=(parts,))


def _parts(lease: LeaseView) -> list[dict[str, Any]]:
    """The placement groups of a lease, in the order in which they were asked for."""
    from schedulemesh.domain.placement import PART_JOINT

    if not lease.ray_id or lease.shape is None:
        return []
    parts = zip(lease.ray_id.split(PART_JOINT), lease.shape.each_part, strict=True)
    return [
        {
            "id": ray_id,
            "strategy": part.strategy,
            "bundles": [bundle.public() for bundle in part.bundles],
        }
        for ray_id, part in parts
    ]


@command(leases, "renew")
def renew(target: Target, output: Output, tasks: Tasks) -> int:
    """Have the times to live of leases begin again."""
    from schedulemesh.api.leases import RenewLease
    from schedulemesh.cli.changes import change_each
    from schedulemesh.domain.sentences import say
    from schedulemesh.protocol.answers import Response

    def request(task_id: str) -> RenewLease:
        return RenewLease(task_id=task_id)

    return change_each(target, output, tasks, request, Response, lambda _: say("result_renewed"))


@command(leases, "release")
def release(target: Target, output: Output, tasks: Tasks) -> int:
    """Give leases up; what runs in their placement groups is ended."""
    from schedulemesh.api.leases import ReleaseLease
    from schedulemesh.cli.changes import change_each
    from schedulemesh.domain.sentences import say
    from schedulemesh.protocol.answers import Response

    def request(task_id: str) -> ReleaseLease:
        return ReleaseLease(task_id=task_id, request_id=uuid.uuid4().hex)

    return change_each(target, output, tasks, request, Response, lambda _: say("result_released"))


@command(app, "groups")
def list_groups(
    target: Target,
    view: View,
    select: Select,
    pool: Annotated[str | None, typer.Option(help="Only those of this pool.")] = None,
) -> None:
    """List the placement groups of the pools: which are kept, where they are, and who uses them."""
    from schedulemesh.api.pools import GetGroupStats, PlacementGroupRow
    from schedulemesh.protocol.answers import Details

    def listing(gateway: Gateway) -> Listing:
        pools = gateway.ask(GetGroupStats(pool_name=pool), Details).facts["pools"]
        rows = [
            {"pool_name": name, **one} for name, stats in pools.items() for one in stats["groups"]
        ]
        notes = tuple(
            phrase("remark_lacks_group", pool=name, error=one["error"])
            for name, stats in pools.items()
            for one in stats["unplaced"]
        )
        return Listing(
            kind="placement groups", rows=rows, columns=_GROUPS, row=PlacementGroupRow, notes=notes
        )

    show(target, view, listing, select)
