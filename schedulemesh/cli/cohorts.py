"""The command cohorts: list, create, rename and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.columns import COHORTS
from schedulemesh.cli.command import Output, Select, Target, View, command, group
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Listing

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()
cohorts = typer.Typer()
app.add_typer(cohorts, name="cohorts")

Cohort = Annotated[str, typer.Argument(help="The cohort's name.")]


@group(cohorts)
def list_cohorts(target: Target, view: View, select: Select) -> None:
    """List the cohorts: which pools share their quota, and how much of it is idle."""
    from schedulemesh.api.pools import CohortInfo, ListCohorts
    from schedulemesh.protocol.answers import Listed

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(ListCohorts(), Listed).rows
        return Listing(kind="cohorts", rows=rows, columns=COHORTS, row=CohortInfo)

    show(target, view, listing, select)


@command(cohorts, "create")
def create(
    target: Target,
    output: Output,
    cohort: Cohort,
    parent: Annotated[
        str | None, typer.Option(metavar="COHORT", help="The cohort that it is in; default: none.")
    ] = None,
    weight: Annotated[
        float, typer.Option(help="What its use of others' quota is divided by.")
    ] = 1.0,
) -> int:
    """Create a cohort that does not exist yet; apply changes one."""
    from schedulemesh.api.pools import CreateCohort
    from schedulemesh.cli.changes import change_each, changed_result
    from schedulemesh.protocol.answers import Response

    def request(name: str) -> CreateCohort:
        return CreateCohort(name=name, parent=parent, weight=weight)

    return change_each(target, output, [cohort], request, Response, changed_result)


@command(cohorts, "rename")
def rename(
    target: Target,
    output: Output,
    cohort: Cohort,
    new_name: Annotated[str, typer.Argument(help="The name that no cohort has.")],
) -> int:
    """Give a cohort another name; what is in it stays in it."""
    from schedulemesh.api.pools import RenameCohort
    from schedulemesh.cli.changes import rename_one

    return rename_one(target, output, cohort, new_name, RenameCohort)


@command(cohorts, "delete")
def delete(
    target: Target,
    output: Output,
    names: Annotated[list[str], typer.Argument(help="The names of cohorts.")],
) -> int:
    """Delete cohorts in which no pool and no cohort is."""
    from schedulemesh.api.pools import DeleteCohort
    from schedulemesh.cli.changes import change_each, changed_result
    from schedulemesh.protocol.answers import Response

    def request(name: str) -> DeleteCohort:
        return DeleteCohort(name=name)

    return change_each(target, output, names, request, Response, changed_result)
