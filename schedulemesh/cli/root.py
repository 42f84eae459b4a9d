"""The command ``schedulemesh`` itself, with the options that it has without a subcommand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import takewhile
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from schedulemesh import __version__
from schedulemesh.cli.language import asks_for_chinese_help
from schedulemesh.cli.table_names import DECLARED
from schedulemesh.errors import nearest_name

#: The commands that have a function of their own, by what they are for.
COMMANDS: Mapping[str, tuple[str, ...]] = {
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
    ),
    "Understand": (
        "explain",
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


#: The commands by what they are for, in the order in which help lists them.
GROUPS = {
    heading: (*names, *(name for name, (group, _) in DECLARED.items() if group == heading))
    for heading, names in COMMANDS.items()
}
#: What other systems call what these commands do.
_OTHER_SYSTEMS = {
    "bjobs": "tasks",
    "bkill": "cancel",
    "bsub": "submit",
    "delete": "cancel",
    "describe": "explain",
    "get": "status",
    "kill": "cancel",
    "pause": "hold",
    "ps": "tasks",
    "qdel": "cancel",
    "qstat": "queue",
    "qsub": "submit",
    "resume": "release",
    "rm": "cancel",
    "run": "submit",
    "sacct": "history",
    "sbatch": "submit",
    "scale": "pools set",
    "scancel": "cancel",
    "sinfo": "nodes",
    "squeue": "queue",
    "srun": "lease",
    "ssh": "shell",
    "suspend": "hold",
    "why": "explain",
}
#: Dashes that editors and input methods write for one or two of ASCII.
_DASHES = "—–―－−‒‑﹣"

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
        _check_dashes(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if is_unknown_option(error):
                option = error.option_name
                error.message += (
                    f" before the command; is it one of the command? Then: COMMAND {option}"
                )
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that a command line names; of what other systems call so, the error names it."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if (here := _OTHER_SYSTEMS.get(args[0])) is not None:
                error.message = (
                    f"No such command {args[0]!r}. `schedulemesh {here}` does that here."
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


class Subcommands(TyperGroup):
    """Commands about one subject, which are listed where another one is named."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The subcommand that a command line names."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if nearest_name(args[0], self.commands) is None:
                error.message += self.right_form(ctx.command_path, args[0])
            raise

    def right_form(self, path: str, _word: str) -> str:
        """What to type in place of a word that is no subcommand."""
        return f" `{path}`: it has {', '.join(self.commands)}."


def is_unknown_option(error: Any) -> bool:
    """Whether an error is about an option that a command does not have."""
    return type(error).__name__ == "NoSuchOption"


def _check_dashes(ctx: Any, args: list[str]) -> None:
    """Raise a UsageError for a word that begins with a dash that is none of an option."""
    for word in takewhile(lambda word: word != "--", args):
        if word[:1] in _DASHES and word:
            rest = word.lstrip(f"-{_DASHES}")
            raise UsageError(
                f"{word!r} begins with a dash of another kind; type {'-' if len(rest) == 1 else '--'}{rest}",
                ctx=ctx,
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
