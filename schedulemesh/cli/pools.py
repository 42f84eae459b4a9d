"""The command pools: list, get, set and apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.columns import POOLS
from schedulemesh.cli.command import Output, Select, Target, View, command, group
from schedulemesh.cli.declared import File
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.rows import Listing, Record
from schedulemesh.cli.texts import amounts, labels, names

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()
pools = typer.Typer()
app.add_typer(pools, name="pools")

Pool = Annotated[str, typer.Argument(help="The pool's name.")]

_AMOUNTS = ("resources", "free", "used", "reserved", "lent", "borrowed")


@group(pools)
def list_pools(target: Target, view: View, select: Select) -> None:
    """List the pools with their quota."""
    from schedulemesh.api.pools import ListPools, PoolInfo
    from schedulemesh.protocol.answers import Listed

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(ListPools(), Listed).rows
        return Listing(kind="pools", rows=rows, columns=POOLS, row=PoolInfo)

    show(target, view, listing, select)


@command(pools, "get")
def get(target: Target, view: View, pool: Pool) -> None:
    """Show one pool: its definition, its quota by use, and to whom it lends."""
    show(target, view, lambda gateway: _record(_row(gateway, pool)))


def _row(gateway: Gateway, name: str) -> dict[str, Any]:
    """The pool of this name. Raises RefusedError."""
    from schedulemesh.api.pools import ListPools
    from schedulemesh.cli.exits import RefusedError
    from schedulemesh.domain.reasons import Reason
    from schedulemesh.engine.messages.outcomes import Refused
    from schedulemesh.errors import nearest
    from schedulemesh.protocol.answers import Listed

    rows = {row["name"]: row for row in gateway.ask(ListPools(), Listed).rows}
    if name not in rows:
        error = f"there is no pool {name!r}{nearest(name, rows)}"
        raise RefusedError(Refused(reason=Reason.POOL_NOT_FOUND, error=error))
    return rows[name]


def _record(row: dict[str, Any]) -> Record:
    shown = {**row, "labels": labels(row["labels"])}
    shown.update({key: amounts(row[key]) for key in _AMOUNTS})
    for loans in ("lent_to", "borrowed_from"):
        shown[loans] = "; ".join(
            f"{name}: {amounts(amount)}" for name, amount in row[loans].items()
        )
    for limit in ("lending_limit", "borrowing_limit"):
        shown[limit] = amounts(row[limit]) if isinstance(row[limit], dict) else row[limit]
    lines = [(key.replace("_", " "), names(value)) for key, value in shown.items()]
    return Record(facts=row, lines=[line for line in lines if line[1]])


@command(pools, "set")
def set_fields(
    target: Target,
    output: Output,
    pool: Pool,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE…",
            help="Fields of ensure_pool, with values as in YAML; resources.gpu=8 changes one amount.",
        ),
    ],
) -> None:
    """Create a pool, or change fields of it."""
    from schedulemesh.api.pools import ListPools
    from schedulemesh.cli.changes import assignments, changed_result
    from schedulemesh.cli.columns import CHANGES
    from schedulemesh.cli.declaration import normal_pool, pool_request
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Listed, PoolResponse

    assigned = assignments(changes)
    with gateway_to(target) as gateway:
        rows = gateway.ask(ListPools(), Listed).rows
        before = next((row for row in rows if row["name"] == pool), {})
        fields = _merged(assigned, before)
        normal_pool(fields, f"pool {pool!r}")
        result = changed_result(gateway.ask(pool_request(pool, fields), PoolResponse))
    emit(Listing(kind="changes", rows=[{"name": pool, "result": result}], columns=CHANGES), output)


def _merged(assigned: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The given fields; one with dots changes a part of the present value of its first name."""
    fields: dict[str, Any] = {}
    for key, value in assigned.items():
        first, *inner = key.split(".", 1)
        if not inner:
            fields[key] = value
            continue
        part = fields.get(first, before.get(first))
        fields[first] = {**(part if isinstance(part, dict) else {}), inner[0]: value}
    return fields


@command(pools, "apply")
def apply(target: Target, output: Output, file: File) -> None:
    """Create and change the cohorts and pools that a file declares; its policies and tokens are left out."""
    from dataclasses import replace

    from schedulemesh.cli import declaration
    from schedulemesh.cli.declared import applied
    from schedulemesh.cli.gateway import gateway_to

    declared = replace(declaration.read(file), preemption={}, queue={}, tokens=None)
    with gateway_to(target) as gateway:
        emit(applied(gateway, declared), output)
