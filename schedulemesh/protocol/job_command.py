"""The driver command of a job, as it is sent to the runner, and its parser for every way to a scheduler."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from schedulemesh.domain.containers import as_elements, as_items, plain_data
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import parse_number
from schedulemesh.domain.payloads import PackedModule
from schedulemesh.domain.resources import MAX_AMOUNT, parse_resources, sum_of
from schedulemesh.errors import InvalidRequestError, shown

_MODULES = "a list of paths, imported modules and URIs"

#: Words of a command that a shell would obey; a program that gets them can do nothing with them.
_OF_SHELLS = frozenset(
    (
        "&&",
        "||",
        "|",
        "|&",
        ";",
        "&",
        ">",
        ">>",
        "<",
        "<<",
        "2>",
        "2>>",
        "2>&1",
        "&>",
        ">&2",
        "1>&2",
    )
)


@dataclass(frozen=True, kw_only=True)
class PackedFolder:
    """A folder of the submitting machine as an archive."""

    data: bytes
    #: How the name of the archive ends, such as ".zip".
    suffix: str


@dataclass(frozen=True, kw_only=True)
class Packer:
    """Packs and reads what is on the submitting machine; packed without the files that match a pattern."""

    #: A folder in which a driver runs.
    folder: Callable[[Path, tuple[str, ...]], PackedFolder]
    #: A Python module, by its path: its archive, and where Ray finds that.
    module: Callable[[Path, tuple[str, ...]], tuple[PackedModule, bytes]]
    #: The packages that a file lists for ``pip`` or ``uv``, or the environment that it describes for
    #: ``conda``.
    packages: Callable[[Path, str], list[str] | dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What is sent with a job of the submitting machine."""

    folder: PackedFolder | None = None
    modules: tuple[tuple[PackedModule, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobCommand:
    """What a driver is: its command, and what it finds."""

    #: A string is run by the shell.
    entrypoint: str | tuple[str, ...]
    #: Variables of the driver's environment beside those of its node.
    env: Mapping[str, str] = field(default_factory=dict)
    #: The runtime environment of all that the driver starts in Ray.
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    #: The folder that every attempt finds again; empty: one on the node.
    checkpoint_dir: str = ""
    #: What of the claim the driver itself holds, beside what it starts in Ray; both None: its GPUs, until it
    #: connects to Ray.
    driver_cpus: float | None = None
    driver_gpus: float | None = None
    #: Detached actors that stay when it ends, each as NAMESPACE/NAME.
    keep_actors: tuple[str, ...] = ()


def parse_command(arguments: Mapping[str, object], pack: Packer | None) -> tuple[JobCommand, Sent]:
    """The driver that the arguments of ``submit_job`` describe, by name, and what is sent with it of the
    submitting machine. ``pack`` None: the caller is on another machine, whose files cannot be read here.
    Raises InvalidRequestError.
    """
    runtime_env, modules = _runtime_env(arguments.get("runtime_env"), pack)
    folder, inside = arguments.get("working_dir"), runtime_env.get("working_dir")
    if folder is not None and inside is not None:
        raise InvalidRequestError("working_dir is given twice: as such, and in runtime_env")
    excludes = _patterns(runtime_env.pop("excludes", None))
    runtime_env.update(_packages(runtime_env, pack))
    archive = None
    if folder is not None or (inside is not None and not is_uri(inside)):
        runtime_env.pop("working_dir", None)
        archive = _packed(pack, inside if folder is None else folder, excludes)
    checkpoint_dir = arguments.get("checkpoint_dir")
    command = JobCommand(
        entrypoint=_entrypoint(arguments.get("entrypoint")),
        env=_variables(arguments.get("env"), "env"),
        runtime_env=runtime_env,
        checkpoint_dir="" if checkpoint_dir is None else _absolute(checkpoint_dir),
        keep_actors=_actors(arguments.get("keep_actors")),
        **_driver_part(arguments),
    )
    return command, Sent(folder=archive, modules=modules)


def is_uri(folder: object) -> bool:
    """Whether a folder is one that the nodes fetch, not one of the submitting machine."""
    text = as_text(folder)
    try:
        return text is not None and bool(urlsplit(text).scheme)
    except ValueError:
        return False


def _driver_part(arguments: Mapping[str, object]) -> dict[str, float | None]:
    """What the driver itself holds of the claim. Raises InvalidRequestError for amounts that Ray cannot give,
    and for more than is claimed where that is given.
    """
    part: dict[str, float | None] = {}
    for kind in ("cpu", "gpu"):
        name = f"driver_{kind}s"
        amount = arguments.get(name)
        part[name] = None if amount is None else parse_number(amount, name, 0.0, MAX_AMOUNT)
    driver_resources = parse_resources(
        {kind: part[f"driver_{kind}s"] or None for kind in ("cpu", "gpu")}, "the driver's part"
    )
    claimed = (
        [arguments.get("resources")] if arguments.get("bundles") is None else arguments["bundles"]
    )
    if isinstance(claimed, list | tuple) and None not in claimed:
        total = sum_of(parse_resources(bundle) for bundle in claimed)
        if excess := driver_resources.beyond(total):
            raise InvalidRequestError(
                f"driver_cpus and driver_gpus ask for {excess} more than the job claims, which is {total}; "
                "they are a part of it"
            )
    return part


def _packages(runtime_env: Mapping[str, object], pack: Packer | None) -> dict[str, object]:
    """What is in the files of the submitting machine that list packages, by the name of the installer.
    Raises InvalidRequestError for a file that cannot be read, and for one of another machine.
    """
    contents: dict[str, object] = {}
    for name in ("pip", "uv", "conda"):
        value = runtime_env.get(name)
        options = value if isinstance(value, dict) and name != "conda" else {}
        path = options.get("packages") if options else value
        if not isinstance(path, str) or (name == "conda" and not path.endswith((".yaml", ".yml"))):
            continue
        if pack is None:
            raise InvalidRequestError(
                f"runtime_env[{name!r}] is {shown(path)}, a file of your machine; this call takes what "
                "is in it: a list of packages, for conda a dict"
            )
        content = pack.packages(_expanded(Path(path)), name)
        if name != "conda":
            content = {f"{name}_check": False, **options, "packages": content}
        contents[name] = content
    return contents


def _packed(pack: Packer | None, working_dir: object, excludes: tuple[str, ...]) -> PackedFolder:
    path = Path(_text_path(working_dir, "working_dir"))
    if pack is None:
        raise InvalidRequestError(
            f"working_dir is {shown(str(path))}; this call takes a URI that the nodes can fetch, such as "
            "s3://bucket/code.zip, or submit the job with `schedulemesh submit --working-dir`"
        )
    return pack.folder(_expanded(path), excludes)


def _expanded(path: Path) -> Path:
    home = os.path.expanduser(path)  # noqa: PTH111  # Path.expanduser raises for unknown users
    return Path(home)


def _entrypoint(entrypoint: object) -> str | tuple[str, ...]:
    words = _words(entrypoint)
    if any("\0" in word for word in ((words,) if isinstance(words, str) else words)):
        raise InvalidRequestError(
            f"entrypoint is {shown(entrypoint)}, with a zero byte, which no command can have; leave it out"
        )
    return words


def _words(entrypoint: object) -> str | tuple[str, ...]:
    text = as_text(entrypoint)
    if text is not None:
        if not text.strip():
            raise InvalidRequestError("entrypoint is empty; give the command of the driver")
        return text
    elements = as_elements(entrypoint, "entrypoint", "a command: a string, or a list of strings")
    words = tuple(word for word in map(as_text, elements) if word is not None)
    if not words or len(words) != len(elements):
        raise InvalidRequestError(
            f"entrypoint is {shown(entrypoint)}; it must be a command: a string for the shell, or a list of "
            "strings"
        )
    _check_words(words)
    return words


def _check_words(words: tuple[str, ...]) -> None:
    """Raise InvalidRequestError for words that only a shell would understand. Directly after an option, such
    as ``--separator '|'``, they are its value.
    """
    operators = [
        word
        for before, word in itertools.pairwise(words)
        if word in _OF_SHELLS and not before.startswith("-")
    ]
    if operators:
        line = " ".join(word if word in operators else shlex.quote(word) for word in words)
        raise InvalidRequestError(
            f"the command has the word {operators[0]!r}, which only a shell understands; {_use_shell(line)}"
        )
    if len(words) == 1 and len(words[0].split()) > 1:
        raise InvalidRequestError(
            f"the command is one word with spaces, {shown(words[0])}, and no program has that name; give "
            f"each word by itself, or {_use_shell(words[0])}"
        )


def _use_shell(line: str) -> str:
    return f"use sh -c {shlex.quote(line)}; in Python and over HTTP, give the command as one string"


def _variables(env: object, what: str) -> dict[str, str]:
    if env is None:
        return {}
    pairs = [(as_text(name), as_text(value)) for name, value in as_items(env, what, "a dict")]
    variables = {name: value for name, value in pairs if name and value is not None}
    if len(variables) != len(pairs) or any("=" in n or "\0" in n + v for n, v in variables.items()):
        raise InvalidRequestError(f"{what} must be a dict of strings by name, not {shown(env)}")
    return variables


def _runtime_env(
    runtime_env: object, pack: Packer | None
) -> tuple[dict[str, object], tuple[tuple[PackedModule, bytes], ...]]:
    """The runtime environment, with the address at which Ray finds each module of this machine in place of
    its path; and those modules.
    """
    if runtime_env is None:
        return {}, ()
    items = {str(name): value for name, value in as_items(runtime_env, "runtime_env", "a dict")}
    listed = items.pop("py_modules", None)
    plain_env = {name: plain_data(value, f"runtime_env[{name!r}]") for name, value in items.items()}
    if listed is None:
        return plain_env, ()
    excludes = _patterns(plain_env.get("excludes"))
    uris: list[str] = []
    modules: list[tuple[PackedModule, bytes]] = []
    for module in as_elements(listed, "runtime_env['py_modules']", _MODULES):
        if (uri := as_text(module)) is None or not is_uri(uri):
            modules.append(_module(pack, module, excludes))
            uri = modules[-1][0].uri
        uris.append(uri)
    return {**plain_env, "py_modules": uris}, tuple(modules)


def _module(
    pack: Packer | None, module: object, excludes: tuple[str, ...]
) -> tuple[PackedModule, bytes]:
    """A module of this machine, by its path or as it was imported, packed."""
    path = module
    if isinstance(module, ModuleType):
        paths = list(getattr(module, "__path__", ())) or [module.__file__]
        if len(paths) != 1 or paths[0] is None:
            raise InvalidRequestError(
                f"runtime_env['py_modules'] has the module {module.__name__!r}, which is in {len(paths)} "
                "folders; give the path of the one that is needed"
            )
        path = paths[0]
    text = Path(_text_path(path, "each of runtime_env['py_modules']"))
    if pack is None:
        raise InvalidRequestError(
            f"runtime_env['py_modules'] has {shown(str(text))}; this call takes URIs that the nodes can "
            "fetch, such as s3://bucket/module.zip, or submit the job with `schedulemesh submit`"
        )
    return pack.module(_expanded(text), excludes)


def _patterns(excludes: object) -> tuple[str, ...]:
    if excludes is None:
        return ()
    return tuple(map(str, as_elements(excludes, "runtime_env['excludes']", "a list of patterns")))


def _actors(keep_actors: object) -> tuple[str, ...]:
    """Actors, each with its namespace before the first slash."""
    if keep_actors is None:
        return ()
    expected = "a list of actors, each as NAMESPACE/NAME"
    actors = tuple(map(as_text, as_elements(keep_actors, "keep_actors", expected)))
    for actor in actors:
        namespace, _, name = (actor or "").partition("/")
        if not namespace or not name:
            raise InvalidRequestError(
                f"keep_actors has {shown(actor)}; it must be {expected}, such as 'caches/weights'"
            )
    return tuple(actor for actor in actors if actor)


def _absolute(folder: object) -> str:
    """A folder on the nodes; a relative one would be another one for every process."""
    path = _text_path(folder, "checkpoint_dir")
    if not Path(path).is_absolute():
        raise InvalidRequestError(f"checkpoint_dir is {shown(path)}; it must be an absolute path")
    return path


def _text_path(folder: object, what: str) -> str:
    try:
        path = os.fspath(folder)  # type: ignore[call-overload]  # whatever it is, it is checked here
    except TypeError:
        path = None
    text = as_text(path)
    if not text:
        raise InvalidRequestError(f"{what} must be the path of a folder, not {shown(folder)}")
    return text
