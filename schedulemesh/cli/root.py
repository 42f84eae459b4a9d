"""The command ``schedulemesh`` itself, with the options that it has without a subcommand."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from schedulemesh import __version__
from schedulemesh.cli.language import asks_for_chinese_help

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


#: The error of a command line that is wrong: of click or, in later versions of typer, of its own copy.
UsageError: Any = typer.BadParameter.__base__


class GroupedCommands(TyperGroup):
    """Lists the commands by what they are for, each with its whole first sentence."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **more: Any
    ) -> Any:
        """The context of a command line, whose help is in its language."""
        command = self
        if asks_for_chinese_help(args):
            from schedulemesh.cli.chinese_help import with_chinese_help

            command = with_chinese_help(self)
        return super(GroupedCommands, command).make_context(info_name, args, parent, **more)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command with this name as the context has it, whose help is in the language of the line."""
        commands: dict[str, Any] = ctx.command.commands
        return commands.get(cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before the command; an option of a command is told where it belongs."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if option := getattr(error, "option_name", ""):
                error.message += (
                    f" before the command; is it one of the command? Then: COMMAND {option}"
                )
            raise

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


#: The options of every command that may also stand before it, with the variable that says the same.
_VARIABLES = {
    "name": "SCHEDULEMESH_NAME",
    "namespace": "SCHEDULEMESH_NAMESPACE",
    "address": "RAY_ADDRESS",
    "lang": "SCHEDULEMESH_LANG",
}


def _for_command(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> None:
    """Give an option that stands before the command to the command, as if its variable were set."""
    del context
    if value is not None:
        os.environ[_VARIABLES[parameter.name or ""]] = value


def _before_command(option: str) -> Any:
    return typer.Option(option, callback=_for_command, is_eager=True, hidden=True)


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    name: Annotated[str | None, _before_command("--name")] = None,
    namespace: Annotated[str | None, _before_command("--namespace")] = None,
    address: Annotated[str | None, _before_command("--address")] = None,
    lang: Annotated[Literal["en", "zh"] | None, _before_command("--lang")] = None,
) -> None:
    """Options of the command itself, and of every command where they stand before it."""
