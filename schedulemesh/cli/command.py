"""Declares commands: shared options, and errors as exit codes.

A command is a function whose parameters are its own arguments and options, and some of the groups of
shared options: ``Target``, ``Output`` or ``View``, and ``Select``. The decorator ``command`` turns each group
into its options::

    @command(app)
    def agents(target: Target, view: View, select: Select) -> None:
        show(target, view, lambda gateway: Listing(...), select)
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib.util import find_spec
from types import FrameType
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from schedulemesh.cli.completion import COMPLETERS
from schedulemesh.cli.language import speak
from schedulemesh.cli.root import Subcommands, UsageError, is_unknown_option
from schedulemesh.domain.language import language_of
from schedulemesh.errors import InvalidRequestError, ScheduleMeshError


class Format(str, Enum):
    """How a command prints what it found."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


class Lang(str, Enum):
    """A language of sentences."""

    EN = "en"
    ZH = "zh"


#: The language of a command's sentences; every command has it.
Speech = Annotated[
    Lang | None,
    typer.Option("--lang", help="Language of sentences; default: by SCHEDULEMESH_LANG or LANG."),
]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The scheduler that a command is for."""

    name: Annotated[
        str | None,
        typer.Option(
            envvar="SCHEDULEMESH_NAME",
            help="The scheduler's name; default: the one that lives in the cluster.",
        ),
    ] = None
    namespace: Annotated[
        str | None, typer.Option(envvar="SCHEDULEMESH_NAMESPACE", help="Its Ray namespace.")
    ] = None
    address: Annotated[
        str,
        typer.Option(envvar="RAY_ADDRESS", help="The Ray cluster; auto: the one on this machine."),
    ] = "auto"
    lang: Speech = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """How a command prints."""

    output: Annotated[
        Format, typer.Option("--output", "-o", help="Form of the output.", case_sensitive=False)
    ] = Format.TABLE

    @property
    def repeated(self) -> bool:
        """Whether more follows what is printed."""
        return False


#: Seconds between two looks where nothing is said.
_INTERVAL_S = 2.0


@dataclass(frozen=True, kw_only=True)
class View(Output):
    """How a command prints that looks at something, and whether it looks again."""

    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print again until interrupted.")] = (
        False
    )
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between two looks of --watch.")
    ] = _INTERVAL_S
    count: Annotated[
        int, typer.Option("--count", min=0, help="Looks of --watch; 0: until interrupted.")
    ] = 0

    @property
    def repeated(self) -> bool:
        """Whether more follows what is printed."""
        return self.watch

    def check(self) -> None:
        """Raise InvalidRequestError for an option of ``watch`` without it."""
        for option, is_given in (
            ("--count", bool(self.count)),
            ("--interval", self.interval != _INTERVAL_S),
        ):
            if is_given and not self.watch:
                raise InvalidRequestError(
                    f"{option} is for looking again and again; give it with --watch"
                )

    def looks(self, pause: Callable[[float], None] = time.sleep) -> Iterator[int]:
        """The number of each look, one only without ``watch``. Between two ``pause`` gets the interval."""
        last = self.count if self.watch else 1
        for number in itertools.count(1):
            yield number
            if number == last:
                return
            pause(self.interval)


@dataclass(frozen=True, kw_only=True)
class Select:
    """Which rows a command prints."""

    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            "-f",
            metavar="KEY=VALUE",
            help="Only rows with this value; KEY!=VALUE: without it. Repeatable.",
        ),
    ] = None
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "-l",
            metavar="LABEL=VALUE",
            help="Only rows with this label; LABEL!=VALUE: without it. Repeatable.",
        ),
    ] = None
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="KEY", help="Sort by this value; -KEY: the largest first."),
    ] = None

    @property
    def everything(self) -> bool:
        """Whether all rows have to be looked at."""
        return bool(self.filters or self.labels or self.sort)


#: A moment in the past; see ``texts.moment``.
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="From then on: 90s, 30m, 12h, 7d or a date."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Tasks = Annotated[list[str], typer.Argument(help="Ids of tasks.", show_default=False)]

CommandFunction = Callable[..., "int | None"]


def command(
    app: typer.Typer, name: str | None = None, *, negative: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Add a function to an app as a command. What it returns is its exit code, None: 0. With ``negative`` its
    arguments may be negative numbers, which are not taken for options.
    """
    settings = {"ignore_unknown_options": negative}

    def added(function: CommandFunction) -> CommandFunction:
        app.command(name, cls=_Command, context_settings=settings)(_as_command(function))
        return function

    return added


def group(app: typer.Typer) -> Callable[[CommandFunction], CommandFunction]:
    """Make a function what an app of subcommands does where none of them is named."""

    def added(function: CommandFunction) -> CommandFunction:
        run = _as_command(function)

        @functools.wraps(run)
        def unless_subcommand(ctx: typer.Context, **given: Any) -> None:
            if ctx.invoked_subcommand is None:
                run(**given)

        own_parameters = inspect.signature(run).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        context = inspect.Parameter("ctx", kind=kind, annotation=typer.Context)
        unless_subcommand.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [context, *own_parameters]
        )
        app.callback(cls=_Group, invoke_without_command=True)(unless_subcommand)
        return function

    return added


#: Where a context keeps how many words come after the first ``--``.
_AFTER_DASHES = "schedulemesh.words_after_dashes"
#: What people type to see a list.
_LIST_WORDS = ("list", "ls", "show", "all")
#: What people type to change something.
_CHANGE_WORDS = ("set", "add", "new", "update", "edit", "remove", "rm")
_OF_JOBS = {
    **dict.fromkeys(("-p", "-q", "--partition", "--queue"), "--pool"),
    **dict.fromkeys(("-t", "--walltime"), "--time"),
    **dict.fromkeys(("-c", "--cpus-per-task"), "--cpus"),
    **dict.fromkeys(("-G", "--gres", "--gpus-per-node"), "--gpus"),
    **dict.fromkeys(("-N", "-n", "--nodes", "--ntasks"), "--bundle, once for each"),
    **dict.fromkeys(("-J", "--job-name"), "--id"),
    **dict.fromkeys(("-d", "--dependency"), "--after"),
    "-a": "--array",
    "--mem": "--memory",
    "-C": "--node-label",
    "--constraint": "--node-label",
}


def _of_several(command: str) -> dict[str, str]:
    """How a command is given all tasks, or those of a pool."""
    pool = f"`schedulemesh tasks -f pool=POOL -o name | xargs schedulemesh {command}`"
    every = f"`schedulemesh tasks -o name | xargs schedulemesh {command}`"
    return {"--all": every, "-a": every, "--pool": pool, "-p": pool}


#: Options of other systems, and what they are here, by the command.
OTHER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "submit": _OF_JOBS,
    "lease": _OF_JOBS,
    "logs": {"-f": "--follow", "-n": "--tail", "--lines": "--tail", "--grep": "--search"},
    "wait": {"--for": "--until", "-t": "--timeout"},
    "exec": {"-t": "`schedulemesh shell ID`", "-i": "--stdin"},
    **{command: _of_several(command) for command in ("cancel", "hold", "release", "preempt")},
}


def words_after_dashes(context: Any) -> int | None:
    """How many words of a command line come after its first ``--``; None: it has none."""
    number: int | None = context.meta.get(_AFTER_DASHES)
    return number


class _Command(TyperCommand):
    """A command that says how rows are chosen where it is given a name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command."""
        ctx.meta[_AFTER_DASHES] = len(args) - args.index("--") - 1 if "--" in args else None
        first = args[0] if args else "-"
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            # Other errors about options and values are of further types: these words are too many.
            if is_unknown_option(error):
                error.message += _other_option(ctx, error.option_name)
            elif type(error) is UsageError and _takes_filters(self):
                error.message += f"; `{ctx.command_path} -f KEY=VALUE` chooses rows"
            elif type(error) is UsageError and _takes_name_alone(self) and first[:1] != "-":
                error.message += f"; a scheduler is named with --name {first}"
            raise


def _other_option(ctx: Any, option: str) -> str:
    """What stands here for an option of another system, or for one that chooses rows."""
    here = OTHER_OPTIONS.get(ctx.command.name or "", {}).get(option)
    if here is not None:
        return f"; here it is {here}"
    return (
        f"; `{ctx.command_path} -f KEY=VALUE` chooses rows" if _takes_filters(ctx.command) else ""
    )


def _takes_name_alone(command: Any) -> bool:
    """Whether a command is for a scheduler, and for nothing else that it is given."""
    names_scheduler = any("--name" in parameter.opts for parameter in command.params)
    return names_scheduler and all(p.param_type_name == "option" for p in command.params)


def _takes_filters(command: Any) -> bool:
    return any("--filter" in parameter.opts for parameter in command.params)


class _Group(Subcommands):
    """A list with subcommands, which says how one of its rows is shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if is_unknown_option(error):
                error.message += _other_option(ctx, error.option_name)
            raise

    def right_form(self, path: str, word: str) -> str:
        """See Subcommands."""
        if not _takes_filters(self) or word in _CHANGE_WORDS:
            return super().right_form(path, word)
        if word in _LIST_WORDS:
            return f" `{path}` lists all, and takes -f KEY=VALUE."
        if "get" in self.commands and word.lower() == word and not word.startswith("-"):
            return f" `{path} get {word}` shows one of them."
        return f" `{path} -f KEY=VALUE` chooses rows."


def _as_command(function: CommandFunction) -> Callable[..., None]:
    """The function that Typer calls: its parameters are options, its errors exit codes."""
    # Not get_type_hints, which on Python 3.10 wraps what has None as default once more.
    own_parameters = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in own_parameters if is_dataclass(p.annotation)
    }
    has_target = Target in groups.values()

    @functools.wraps(function)
    def run(**given: Any) -> None:
        lang = given["lang"] if has_target else given.pop("lang")
        speak(language_of(os.environ) if lang is None else lang.value)
        arguments = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        raise typer.Exit(_run(lambda: function(**given, **arguments), options))

    parameters = [p for p in own_parameters if p.name not in groups]
    for group in groups.values():
        parameters += _options_of(group)
    if not has_target:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("lang", kind=kind, default=None, annotation=Speech))
    for parameter in parameters:
        _complete(parameter)
    options = dict(_option_names(parameters))
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what inspect looks for
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    run.__annotations__ = {}
    return run


#: Arguments of the Python calls whose options have other names.
_OTHER_NAMES = {
    "estimated_duration": "time",
    "task_id": "id",
    "expires_in": "expires",
    "token": "who",
}


def _option_names(parameters: Iterable[inspect.Parameter]) -> Iterator[tuple[str, str]]:
    """The options by what the errors of the Python calls name them."""
    for parameter in parameters:
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                named = [word for word in option.param_decls or () if word.startswith("--")]
                name = named[0] if named else f"--{parameter.name.replace('_', '-')}"
                yield name.removeprefix("--").replace("-", "_"), name


def _with_option(message: str, options: Mapping[str, str]) -> str:
    """An error that begins with an argument of a Python call, with the option for that."""
    first, space, rest = message.partition(" ")
    name = _OTHER_NAMES.get(first, first)
    option = options.get(name) or options.get(name.removesuffix("_s"))
    return message if option is None else f"{option}{space}{rest}"


def _complete(parameter: inspect.Parameter) -> None:
    """Have a shell complete the values of a parameter, where its name says what they are."""
    for option in getattr(parameter.annotation, "__metadata__", ()):
        if parameter.name in COMPLETERS and option.autocompletion is None:
            option.autocompletion = COMPLETERS[parameter.name]


@functools.cache
def _options_of(group: Any) -> tuple[inspect.Parameter, ...]:
    """The parameters that the fields of a group of options stand for, which many commands share."""
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return tuple(
        inspect.Parameter(
            field.name, kind=kind, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    )


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which ends a command as an interrupt does."""


def _run(body: Callable[[], int | None], options: Mapping[str, str]) -> int:
    """The exit code of a command; an error is printed as a sentence on stderr. ``options``: see
    ``_option_names``.
    """
    try:
        with ended_by_sigterm():
            return int(body() or 0)
    except TerminatedError:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ScheduleMeshError, TimeoutError) as error:
        from schedulemesh.cli.exits import code_of

        note(_message(error, options))
        return int(code_of(error))
    except ImportError as error:
        sentence = missing_part(error)
        if sentence is None:
            raise
        note(sentence)
        return 1


def missing_part(error: ImportError) -> str | None:
    """What a command needs that the installed distribution does not have; None: it has all of its parts, and
    something else is missing.
    """
    package, _, part = (error.name or "").partition(".")
    is_client = find_spec("schedulemesh.core") is None
    if package == "ray" or (is_client and part.partition(".")[0] == "core"):
        return (
            "this command needs Ray, which is not installed here: run it on a machine of the cluster, where "
            "schedulemesh-core is installed"
        )
    if is_client and package in ("schedulemesh", "sqlalchemy"):
        return "this command is a part of schedulemesh-core, which needs Ray: pip install schedulemesh-core"
    return None


def _message(error: Exception, options: Mapping[str, str]) -> str:
    """What an error says; what a Python program would do about it is said as a command."""
    from schedulemesh.cli.wording import in_commands

    # A command's own: the words of its user are not exchanged.
    if type(error) is InvalidRequestError:
        return _with_option(str(error), options)
    return in_commands(str(error))


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within, SIGTERM raises TerminatedError, whatever handler a library has set for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise TerminatedError


def note(sentence: str) -> None:
    """Print what is no data: errors, and remarks about the data."""
    print(sentence, file=sys.stderr)
