"""The command ``schedulemesh`` itself, with the options that it has without a subcommand."""

from __future__ import annotations

from typing import Annotated

import typer

from schedulemesh import __version__


def new_app() -> typer.Typer:
    """The command without its subcommands."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Pools, quotas, preemption and placement for Ray clusters.",
    )
    app.callback()(_options)
    return app


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
