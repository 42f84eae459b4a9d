"""The command pools: list, get, create, set, rename, delete and apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.columns import pool_columns
from schedulemesh.cli.command import Output, Select, Target, View, command, group
from schedulemesh.cli.declared import File
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.rows import Listing, Record
from schedulemesh.cli.texts import amounts, budget, duration, labels, names, owner_limit
from schedulemesh.domain.node_labels import spelled
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()
pools = typer.Typer()
app.add_typer(pools, name="pools")

Pool = Annotated[str, typer.Argument(help="The pool's name.")]

#: The fields that limit for how long tasks run.
_LIMITS = ("max_run_s", "default_max_run_s", "idle_s")
_AMOUNTS = ("resources", "free", "used", "reserved", "lent", "borrowed")


@group(pools)
def list_pools(target: Target, view: View, select: Select) -> None:
    """List the pools with their quota."""
    from schedulemesh.api.pools import ListPools, PoolInfo
    from schedulemesh.protocol.answers import Listed

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(ListPools(), Listed).rows
        return Listing(kind="pools", rows=rows, columns=pool_columns(rows), row=PoolInfo)

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
    from schedulemesh.domain.sentences import did_you_mean, say
    from schedulemesh.engine.messages.outcomes import Refused
    from schedulemesh.protocol.answers import Listed

    rows = {row["name"]: row for row in gateway.ask(ListPools(), Listed).rows}
    if name not in rows:
        error = say("no_such_pool", name=name, near=did_you_mean(name, rows))
        raise RefusedError(Refused(reason=Reason.POOL_NOT_FOUND, error_text=error))
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
    shown["owner_limits"] = "; ".join(
        f"{owner}: {owner_limit(limit)}" for owner, limit in row["owner_limits"].items()
    )
    shown["budget"] = None if row["budget"] is None else budget(row["budget"])
    shown["owner_budgets"] = "; ".join(
        f"{owner}: {budget(entry)}" for owner, entry in row["owner_budgets"].items()
    )
    shown["flavors"] = "; ".join(map(_flavor, row["flavors"]))
    for name in _LIMITS:
        shown[name] = None if row[name] is None else duration(row[name])
    lines = [(_heading(key), names(value)) for key, value in shown.items()]
    return Record(facts=row, lines=[line for line in lines if line[1]])


def _heading(key: str) -> str:
    """The name of a fact of a pool; durations are shown with their units."""
    return "idle limit" if key == "idle_s" else key.removesuffix("_s").replace("_", " ")


def _flavor(flavor: dict[str, Any]) -> str:
    """A flavor as people read it, such as ``h100 (gpu on nodes with ray.io/accelerator-type=H100)``."""
    conditions = spelled(tuple(flavor["label_selector"].items()))
    return phrase("cell_flavor", name=flavor["name"], kinds=flavor["kinds"], conditions=conditions)


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
) -> int:
    """Change fields of a pool that exists.

    A quota may be less than what is in use: nothing new gets what is above, and it shrinks as tasks end.
    """
    from schedulemesh.api.pools import ListPools, ResizePool
    from schedulemesh.cli.changes import assignments, change_each, changed_result
    from schedulemesh.cli.declaration import normal_pool, pool_changes
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Listed, PoolResponse

    assigned = assignments(changes)
    with gateway_to(target) as gateway:
        rows = gateway.ask(ListPools(), Listed).rows
        before = next((row for row in rows if row["name"] == pool), {})
        fields = _merged(assigned, before)
        normal_pool(fields, f"pool {pool!r}")

    def request(name: str) -> ResizePool:
        return ResizePool(**pool_changes(name, fields))

    return change_each(target, output, [pool], request, PoolResponse, changed_result)


@command(pools, "create")
def create(
    target: Target,
    output: Output,
    pool: Pool,
    definition: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE…",
            help="Fields of create_pool, with values as in YAML, such as resources.gpu=8.",
        ),
    ] = None,
) -> int:
    """Create a pool that does not exist yet."""
    from schedulemesh.api.pools import CreatePool, EnsurePool
    from schedulemesh.cli.changes import assignments, change_each, changed_result
    from schedulemesh.cli.declaration import normal_pool, pool_changes
    from schedulemesh.domain.pool import PoolSpec
    from schedulemesh.protocol.answers import PoolResponse

    fields = _merged(assignments(definition or ()), {})

    def request(name: str) -> CreatePool:
        normal_pool(fields, f"pool {name!r}")
        definition = EnsurePool(**pool_changes(name, fields))
        return CreatePool(spec=definition.applied_to(PoolSpec(name=name)))

    return change_each(target, output, [pool], request, PoolResponse, changed_result)


@command(pools, "rename")
def rename(
    target: Target,
    output: Output,
    pool: Pool,
    new_name: Annotated[str, typer.Argument(help="The name that no pool has.")],
) -> int:
    """Give a pool another name; tasks, loans, tokens and policies follow, the past keeps the old one."""
    from schedulemesh.api.pools import RenamePool
    from schedulemesh.cli.changes import rename_one

    return rename_one(target, output, pool, new_name, RenamePool)


@command(pools, "delete")
def delete(
    target: Target,
    output: Output,
    names: Annotated[list[str], typer.Argument(help="The names of pools.")],
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Also pools in use: cancel what waits, save and evict what runs, and delete them then.",
        ),
    ] = False,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --drain: when all should have ended, such as 30m from now; tasks that are expected "
            "to end by then may finish.",
        ),
    ] = None,
) -> int:
    """Delete pools that nothing uses; with --drain those in use, too, when they are empty."""
    from schedulemesh.cli.changes import change_each, changed_result
    from schedulemesh.cli.declared_pools import deletion
    from schedulemesh.cli.texts import seconds
    from schedulemesh.protocol.answers import Response

    if deadline is not None and not drain:
        raise InvalidRequestError("--deadline is for what runs in the pools; give --drain with it")
    deadline_s = None if deadline is None else seconds(deadline, "--deadline")
    return change_each(
        target,
        output,
        names,
        lambda name: deletion(name, drain=drain, deadline_s=deadline_s),
        Response,
        changed_result,
    )


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
