"""The command ``schedulemesh`` itself: its own options, and its start.

The commands that are called over and over are loaded alone: loading all of them takes longer than most commands
do.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from schedulemesh import __version__

#: The module of each command that is loaded alone, by its name. For every other command all are loaded.
ALONE = {
    "status": "status",
    "pools": "pools",
    "agents": "agents",
    "nodes": "agents",
    "tasks": "tasks",
    "cancel": "tasks",
    "queue": "queue",
    "explain": "explain",
    "history": "history",
    "usage": "history",
    "events": "history",
    "metrics": "metrics",
}


def new_app() -> typer.Typer:
    """The command without its subcommands."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Pools, quotas, preemption and placement for Ray clusters.",
    )
    app.callback()(_options)
    return app


def main() -> None:
    """Run the command line."""
    app_for(sys.argv[1:])()


def app_for(words: list[str]) -> typer.Typer:
    """The command with all subcommands; where these words begin with one that is loaded alone, with that."""
    module = ALONE.get(words[0]) if words else None
    if module is None:
        from schedulemesh.cli.app import app

        return app
    found = new_app()
    found.add_typer(import_module(f"schedulemesh.cli.{module}").app)
    return found


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"schedulemesh {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""
