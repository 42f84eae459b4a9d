"""The command ``schedulemesh``."""

from __future__ import annotations

from typing import Annotated

import typer

from schedulemesh import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Pools, quotas, preemption and placement for Ray clusters.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"schedulemesh {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def demo(
    steps: Annotated[
        int, typer.Option(min=20, help="Training steps of the pretraining job.")
    ] = 400,
) -> None:
    """Preempt a real training job on a local Ray, and see it go on where it was."""
    from schedulemesh.cli.demo import run

    raise typer.Exit(run(steps))


def main() -> None:
    """Run the command line."""
    app()
