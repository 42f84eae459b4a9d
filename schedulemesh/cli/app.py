"""The command ``schedulemesh``: its commands, each in the module of its subject."""

from __future__ import annotations

from typing import Annotated

import typer

from schedulemesh import __version__
from schedulemesh.cli import (
    agents,
    alerts,
    audit,
    cohorts,
    declared,
    doctor,
    drains,
    explain,
    history,
    lifecycle,
    metrics,
    plugins,
    policy,
    pools,
    preemptions,
    queue,
    status,
    tasks,
    tokens,
    top,
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Pools, quotas, preemption and placement for Ray clusters.",
)

_SUBJECTS = (
    status,
    top,
    pools,
    cohorts,
    agents,
    drains,
    tasks,
    queue,
    explain,
    preemptions,
    metrics,
    alerts,
    history,
    policy,
    declared,
    tokens,
    audit,
    plugins,
    doctor,
    lifecycle,
)
for _subject in _SUBJECTS:
    app.add_typer(_subject.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"schedulemesh {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command line."""
    app()
