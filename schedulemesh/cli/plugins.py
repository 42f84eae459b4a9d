"""The command plugins."""

from __future__ import annotations

import typer

from schedulemesh.cli.command import Output, Select, command
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing
from schedulemesh.cli.selection import selected

app = typer.Typer()

_COLUMNS = (
    Column(heading="name", key="name"),
    Column(heading="for", key="for", chinese="用途"),
    Column(heading="from", key="from"),
    Column(heading="what it does", key="description"),
)


@command(app, "plugins")
def list_plugins(output: Output, select: Select) -> int:
    """List the strategies that are built in and installed; fails if one cannot be loaded."""
    from schedulemesh.cli.plugin_rows import plugin_rows

    rows, all_fine = plugin_rows()
    emit(selected(Listing(kind="plugins", rows=rows, columns=_COLUMNS), select), output)
    return 0 if all_fine else 1
