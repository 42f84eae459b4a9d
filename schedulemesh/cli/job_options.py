"""The options of ``submit``, which also come from a file, and from directives in the head of a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import note
from schedulemesh.cli.language import phrase
from schedulemesh.cli.priorities import PriorityOption
from schedulemesh.cli.root import UsageError
from schedulemesh.cli.texts import megabytes, seconds
from schedulemesh.errors import InvalidRequestError, shown

if TYPE_CHECKING:
    from schedulemesh.domain.task_fields import Option

#: How a directive begins.
_MARK = "#SM"
#: What is probably meant as a line with options, and the marks of other systems.
_NEARLY_MARKED = re.compile(r"#\s*sm\s*-", re.IGNORECASE)
_OTHER_MARKS = ("#SBATCH", "#PBS", "#BSUB", "#$")
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        "-l",
        metavar="LABEL=VALUE",
        help="A label, by which rules rank it. Repeatable.",
    ),
]
#: Bytes of a script that are looked at for directives, and how many words of the command may be the script.
_HEAD, _SCRIPT_WORDS = 65_536, 2


@dataclass(frozen=True, kw_only=True)
class DescriptionOptions:
    """What describes whatever runs as a task."""

    label: LabelOption = None
    # begin written options all
    time: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long it will run: 90s, 30m, 2h, 1d. With it others need not wait in vain.",
        ),
    ] = None
    owner: Annotated[
        str | None,
        typer.Option(help="To whom it belongs; else the user of this process."),
    ] = None
    max_preemptions: Annotated[
        int | None,
        typer.Option(min=0, help="How often it can be evicted; else as the policy says."),
    ] = None
    max_run: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="The longest that it may run: 2h, 1d. Then it is saved and ended; else as its pool "
            "says.",
        ),
    ] = None
    idle: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long its GPUs may be idle before a warning, and again before its end.",
        ),
    ] = None
    # end written


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """What a job asks for, and how urgent it is."""

    pool: Annotated[str | None, typer.Option(help="The pool that it runs in.")] = None
    task_id: Annotated[str | None, typer.Option("--id", help="Its id; else one is made.")] = None
    cpus: Annotated[
        float | None,
        typer.Option(min=0, help="CPUs for what it starts in Ray; else one for each of its GPUs."),
    ] = None
    gpus: Annotated[float, typer.Option(min=0, help="GPUs for what it starts in Ray.")] = 0.0
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory for what it starts: 512MB, 64GB, or a number of MB."
        ),
    ] = None
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="A custom resource. Repeatable."),
    ] = None
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=AMOUNT,…",
            help="A part of the claim, on one node, such as cpu=8,gpu=4. Repeatable.",
        ),
    ] = None
    strategy: Annotated[
        str | None,
        typer.Option(
            help="How its parts are placed: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD. "
            "Without --bundle there is a part for each GPU, else for each CPU."
        ),
    ] = None
    gpu_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Only on nodes with this model of GPU, such as H100; several as H100,A100.",
        ),
    ] = None
    node_label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Only on nodes with this label; !VALUE, in(A, B) and !in(A, B) are allowed. Repeatable.",
        ),
    ] = None
    fallback: Annotated[
        list[str] | None,
        typer.Option(
            "--or",
            metavar="NAME=VALUE,…",
            help="What will do instead, such as gpu-model=L40S,gpus=2. Repeatable, the first ones first.",
        ),
    ] = None
    priority: PriorityOption = 5.0


@dataclass(frozen=True, kw_only=True)
class JobOptions(DescriptionOptions, ClaimOptions):
    """What a job asks for, and how it runs."""

    # begin written options ended queued runs
    retries: Annotated[
        int,
        typer.Option(min=0, help="How often it is started again."),
    ] = 0
    on_preempted: Annotated[
        str,
        typer.Option(help="requeue or drop: what becomes of it when it is evicted."),
    ] = "requeue"
    on_oom: Annotated[
        str | None,
        typer.Option(
            help="retry, grow (with twice the memory) or fail: where it is killed by a shortage of "
            "memory."
        ),
    ] = None
    oom_max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The most memory that grow gives it."),
    ] = None
    on_time_limit: Annotated[
        str | None,
        typer.Option(help="end or requeue: what becomes of it when it has run for --max-run."),
    ] = None
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID[,ID]",
            help="Tasks that it starts after: when they have completed, any:ID however it ends, "
            "fail:ID when it does not complete. Repeatable.",
        ),
    ] = None
    array: Annotated[
        str | None,
        typer.Option(
            metavar="INDICES",
            help="Many jobs: 0-99, 0-99:5 or 1,4,7-9, and %10 behind it where at most ten run at once."
            " Each has its index as SCHEDULEMESH_ARRAY_INDEX.",
        ),
    ] = None
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL,…",
            help="How close together its parts are: rack, preferred:rack, slice:8:rack, separated by "
            "commas.",
        ),
    ] = None
    # end written
    working_dir: Annotated[
        str | None,
        typer.Option(help="A folder of this machine that it runs in, up to 16 MB packed."),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable of its environment. Repeatable."),
    ] = None
    runtime_env: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|YAML", help="Ray's runtime environment: a YAML or JSON file, or its text."
        ),
    ] = None
    checkpoint_dir: Annotated[
        str | None, typer.Option(help="A folder on all nodes that every attempt finds again.")
    ] = None
    driver_cpus: Annotated[
        float | None, typer.Option(min=0, help="CPUs of its claim that the driver itself holds.")
    ] = None
    driver_gpus: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GPUs of its claim that the driver itself holds; else all, until it connects to Ray.",
        ),
    ] = None
    start_limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHASE=DURATION",
            help="How long environment, load or constructor may take, such as load=5m. Repeatable.",
        ),
    ] = None
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="From the notice of an eviction to its end: 90s, 2m."
        ),
    ] = None
    over_claim: Annotated[
        str | None,
        typer.Option(
            help="warn or end: where it holds more in Ray than it claims; else the policy's."
        ),
    ] = None
    keep_actor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE/NAME", help="A detached actor that stays when it ends. Repeatable."
        ),
    ] = None
    detached: Annotated[
        bool,
        typer.Option("--detached", help="Not a child of the task that this process belongs to."),
    ] = False


def task_arguments(options: DescriptionOptions) -> dict[str, Any]:
    """The arguments of the Python calls for which there are options, as the fields of a task declare them;
    labels are no such option. Raises InvalidRequestError.
    """
    from schedulemesh.domain.task import FIELDS

    arguments = {}
    for name, field in FIELDS.items():
        option = field.option
        if option is not None and hasattr(options, option.name or name):
            value = getattr(options, option.name or name)
            arguments[name] = (
                None if value is None else _argument(option, option.name or name, value)
            )
    return arguments


def _argument(option: Option, name: str, value: Any) -> object:
    """The value of an option as the Python calls take it. Raises InvalidRequestError."""
    from schedulemesh.domain.numbers import MAX_DURATION_S, parse_positive
    from schedulemesh.domain.task_fields import OptionForm

    word = f"--{name.replace('_', '-')}"
    match option.form:
        case OptionForm.DURATION:
            return seconds(value, word)
        case OptionForm.SPAN:
            return parse_positive(seconds(value, word), word, MAX_DURATION_S)
        case OptionForm.SIZE:
            return megabytes(value, word)
        case OptionForm.LIST:
            return ",".join(value) if value else None
        case OptionForm.TEXT | OptionForm.COUNT:
            return value


def completed(
    context: typer.Context, options: JobOptions, command: list[str], file: str | None
) -> tuple[JobOptions, list[str]]:
    """The options and the command with what a file and then the head of the script say; the command line
    itself overrides both. Raises InvalidRequestError.
    """
    if file is not None:
        words, from_file = _of_file(context, file)
        options, command = _under(context, options, words, file), command or from_file
    for script, words in _directives(command):
        options = _under(context, options, words, script)
    if not command:
        raise InvalidRequestError(
            "there is no command; give it after `--`, or as `command` in the file of -f"
        )
    if options.pool is None:
        raise InvalidRequestError("no pool is named; name the one that it runs in: --pool NAME")
    _note_missing_script(command, options.working_dir)
    return options, command


#: How the names of scripts end.
_SCRIPTS = (".sh", ".bash", ".py")


def _note_missing_script(command: list[str], working_dir: str | None) -> None:
    """Say on stderr that a script of a command is not here: the node may have it, or its name is wrong."""
    scripts = (word for word in command[:_SCRIPT_WORDS] if word.endswith(_SCRIPTS))
    script = next(scripts, None)
    if script is None or any(
        (Path(folder) / script).exists() for folder in (working_dir or "", "")
    ):
        return
    note(phrase("remark_no_script", script=script))


def _under(context: typer.Context, options: JobOptions, words: list[str], where: str) -> JobOptions:
    """The options with those of these words beneath them: one that was given stays, several are joined."""
    try:
        with context.command.make_context("submit", [*words]) as beneath:
            lower_options = {
                name: value for name, value in beneath.params.items() if _is_given(beneath, name)
            }
    except UsageError as error:
        raise InvalidRequestError(f"{where}: {error.format_message()}") from None
    names = {field.name for field in fields(JobOptions)}
    if unknown := lower_options.keys() - names:
        raise InvalidRequestError(
            f"{where} has {', '.join(sorted(unknown))}, which only the command line takes"
        )
    for name, value in lower_options.items():
        present = getattr(options, name)
        if isinstance(value, (list, tuple)):
            lower_options[name] = [*value, *(present or ())]
        elif _is_given(context, name):
            lower_options[name] = present
    return replace(options, **lower_options)


def _is_given(context: Any, name: str) -> bool:
    """Whether a parameter is on the command line of a context."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _of_file(context: typer.Context, path: str) -> tuple[list[str], list[str]]:
    """The options in a YAML file as words, and its command. Raises InvalidRequestError."""
    import yaml

    from schedulemesh.cli.yaml_files import load

    try:
        content = load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidRequestError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InvalidRequestError(
            f"{path} has {shown(content)}; a job is written as the options of submit, such as pool: "
            "research, and its command"
        )
    command = content.pop("command", None) or []
    if isinstance(command, str):
        command = shlex.split(command)
    if not isinstance(command, list):
        raise InvalidRequestError(
            f"{path} has the command {shown(command)}; it is a text or a list"
        )
    several = {
        option
        for parameter in context.command.params
        for option in parameter.opts
        if getattr(parameter, "multiple", False)
    }
    return list(_words(path, content, several)), [str(word) for word in command]


def _words(path: str, options: Mapping[Any, Any], several: Collection[str]) -> Iterator[str]:
    """The words of the command line that the fields of a file stand for. ``several``: the options that take
    several values.
    """
    for key, value in options.items():
        option = f"--{str(key).replace('_', '-')}"
        if isinstance(value, list) and len(value) > 1 and option not in several:
            raise InvalidRequestError(
                f"{path} has {key}: {shown(value)}; it takes one value, such as {shown(value[0])}"
            )
        if value is True:
            yield option
        elif value is not False and value is not None:
            for one in _values(value):
                if isinstance(one, (dict, list)):
                    raise InvalidRequestError(f"{path} has {key}: {shown(value)}, which is nested")
                yield f"{option}={one}"


def _values(value: Any) -> Iterable[Any]:
    """Each value of an option, those of a dict as NAME=VALUE."""
    if isinstance(value, dict):
        return [f"{name}={one}" for name, one in value.items()]
    return value if isinstance(value, list) else [value]


def _directives(command: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The script that a command runs, with the options in the comments at its beginning, as sbatch reads
    them: up to its first line that is no comment.
    """
    for word in command[:_SCRIPT_WORDS]:
        try:
            if not Path(word).is_file():
                continue
            with Path(word).open("rb") as script:
                head = script.read(_HEAD).decode("utf-8")
        except (OSError, ValueError):
            continue
        lines = [*takewhile(_is_comment, head.splitlines())]
        _check_marks(word, lines)
        marked = (line.partition(" ") for line in lines)
        words = [w for mark, _, options in marked if mark == _MARK for w in _split(word, options)]
        if words:
            yield word, words


def _is_comment(line: str) -> bool:
    return line.startswith("#") or not line.strip()


def _check_marks(script: str, lines: Iterable[str]) -> None:
    """Raise InvalidRequestError for options of a script that are nearly marked; say on stderr that those of
    other systems are not read, where there are no others.
    """
    marks = [line.partition(" ")[0] for line in lines]
    for line, mark in zip(lines, marks, strict=True):
        if mark != _MARK and _NEARLY_MARKED.match(line):
            raise InvalidRequestError(
                f"{script} has the line {line!r}; options are written as `{_MARK} --gpus 4`"
            )
    others = [mark for mark in _OTHER_MARKS if mark in marks]
    if others and _MARK not in marks:
        note(phrase("remark_other_marks", script=script, mark=others[0]))


def _split(script: str, options: str) -> list[str]:
    try:
        return shlex.split(options, comments=True)
    except ValueError as error:
        raise InvalidRequestError(f"{script} has {_MARK} {options}: {error}") from None
