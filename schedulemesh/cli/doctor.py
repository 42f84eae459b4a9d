"""The command doctor: checks of what a scheduler needs, and what to do about each that fails."""

from __future__ import annotations

import typer

from schedulemesh.cli.command import Output, Target, command
from schedulemesh.cli.language import spoken
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing

app = typer.Typer()

_COLUMNS = (
    Column(heading="check", key="check", show=spoken),
    Column(heading="status", key="status"),
    Column(heading="found", key="found", show=spoken),
    Column(heading="what to do", key="advice", show=spoken),
)


@command(app)
def doctor(target: Target, output: Output) -> int:
    """Check Ray, versions, scheduler, journal, clock and disk, and say what to do; fails if a check did."""
    from schedulemesh.cli.checks import examined

    rows = examined(target)
    emit(Listing(kind="checks", rows=rows, columns=_COLUMNS, name="check"), output)
    return 1 if any(row["status"] == "failed" for row in rows) else 0
