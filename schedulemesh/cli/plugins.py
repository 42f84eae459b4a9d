"""The command plugins."""

from __future__ import annotations

import typer

from schedulemesh.cli.command import Output, Select, command
from schedulemesh.cli.headings import STRATEGIES
from schedulemesh.cli.language import language, phrase
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.selection import selected
from schedulemesh.cli.texts import field_name

app = typer.Typer()

#: Where the strategies that are built in come from.
BUILT_IN = "built in"


def _uses(uses: str) -> str:
    return ", ".join(map(field_name, uses.split(", ")))


def _source(source: str) -> str:
    return phrase("cell_built_in") if source == BUILT_IN else source


def _description(row: Row) -> str:
    """What a strategy does, in the language of this command if it is built in."""
    if language() == "en" or row["from"] != BUILT_IN:
        return str(row["description"])
    return STRATEGIES[row["name"]]


_COLUMNS = (
    Column(heading="name", key="name"),
    Column(heading="for", key="for", show=_uses, chinese="用途"),
    Column(heading="from", key="from", show=_source),
    Column(heading="what it does", key="", show=_description),
)


@command(app, "plugins")
def list_plugins(output: Output, select: Select) -> int:
    """List the strategies that are built in and installed; fails if one cannot be loaded."""
    from schedulemesh.cli.plugin_rows import plugin_rows

    rows, all_fine = plugin_rows()
    emit(selected(Listing(kind="plugins", rows=rows, columns=_COLUMNS), select), output)
    return 0 if all_fine else 1
