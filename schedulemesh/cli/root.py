"""The command ``schedulemesh`` itself, with the options that it has without a subcommand."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from schedulemesh import __version__

#: The commands by what they are for, in the order in which help lists them.
GROUPS = {
    "Look": (
        "status",
        "top",
        "pools",
        "cohorts",
        "agents",
        "nodes",
        "tasks",
        "queue",
        "jobs",
        "leases",
        "groups",
        "states",
    ),
    "Understand": (
        "explain",
        "shares",
        "budgets",
        "events",
        "history",
        "usage",
        "preemptions",
        "evaluate",
        "metrics",
        "alerts",
    ),
    "Run": (
        "submit",
        "lease",
        "wait",
        "logs",
        "exec",
        "shell",
        "complete",
        "cancel",
        "preempt",
        "save",
        "restore",
        "hold",
        "release",
        "priority",
        "limit",
        "front",
        "adopt",
    ),
    "Operate": (
        "cordon",
        "uncordon",
        "drain",
        "undrain",
        "drains",
        "windows",
        "health",
        "external",
        "orphans",
    ),
    "Configure": ("apply", "diff", "export", "policy", "tokens", "audit", "plugins"),
    "Set up and try": (
        "start",
        "stop",
        "list",
        "doctor",
        "demo",
        "simulate",
        "rehearse",
        "version",
        "help",
    ),
}


class GroupedCommands(TyperGroup):
    """Lists the commands by what they are for, each with its whole first sentence."""

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the commands into a help text."""
        for heading, names in GROUPS.items():
            commands = [(name, self.commands[name]) for name in names if name in self.commands]
            if commands:
                with formatter.section(heading):
                    formatter.write_dl(
                        [(name, sentence_of(each.help or "")) for name, each in commands]
                    )


def sentence_of(text: str) -> str:
    """The first sentence of a command's help."""
    return " ".join(text.partition("\n\n")[0].split())


def new_app() -> typer.Typer:
    """The command without its subcommands."""
    app = typer.Typer(
        cls=GroupedCommands,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="`schedulemesh help COMMAND` says more of one.",
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Pools, quotas, preemption and placement for Ray clusters.",
    )
    app.callback()(_options)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"schedulemesh {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""
