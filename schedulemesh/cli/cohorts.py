"""The command cohorts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from schedulemesh.cli.columns import COHORTS
from schedulemesh.cli.command import Select, Target, View, command
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Listing

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()


@command(app)
def cohorts(target: Target, view: View, select: Select) -> None:
    """List the cohorts: which pools share their quota, and how much of it is idle."""
    from schedulemesh.api.pools import CohortInfo, ListCohorts
    from schedulemesh.protocol.answers import Listed

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(ListCohorts(), Listed).rows
        return Listing(kind="cohorts", rows=rows, columns=COHORTS, row=CohortInfo)

    show(target, view, listing, select)
