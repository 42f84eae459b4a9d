"""The submission of a job: the driver command, the folder and the environment of a call, checked."""

from __future__ import annotations

import fnmatch
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from schedulemesh.config.groups import parse_strategy
from schedulemesh.config.settings import MAX_BLOB_BYTES
from schedulemesh.core.agent.job_runner import JobCommand, JobRunner
from schedulemesh.core.client.task_request import Caller, Submission, task_submission
from schedulemesh.domain.agent import RUN_DRIVER, JobSpec, parse_over_claim
from schedulemesh.domain.containers import as_elements, as_items, plain_data
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import parse_duration
from schedulemesh.errors import InvalidRequestError, shown

#: What a working folder has that a driver does not need.
_LEFT_OUT = (".git", ".venv", "__pycache__", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")
#: Fields of submit_job that describe the driver; the others are those of every submission.
_OF_JOBS = (
    "entrypoint",
    "env",
    "working_dir",
    "runtime_env",
    "checkpoint_dir",
    "grace_s",
    "strategy",
    "over_claim",
)


def job_submission(caller: Caller, given: Mapping[str, object]) -> Submission:
    """The submission of a job from the arguments of ``submit_job``, by name. Raises InvalidRequestError."""
    fields = {name: value for name, value in given.items() if name not in _OF_JOBS}
    if fields.get("on_preempted") is None:
        fields["on_preempted"] = "requeue"
    command = job_command(given)
    # The working directory of the driver is one that the runner unpacks, or one that Ray fetches.
    options = {"runtime_env": dict(command.runtime_env)} if command.runtime_env else None
    task = {
        "actor_class": JobRunner,
        "actor_kwargs": {"command": command},
        "ray_options": options,
        "run": RUN_DRIVER,
    }
    # The driver is a job of its own: nothing of the environment of the submitting job is for it.
    made = task_submission(msgspec.structs.replace(caller, runtime_env={}), {**fields, **task})
    grace_s, strategy = given.get("grace_s"), given.get("strategy")
    over_claim = given.get("over_claim")
    spec = JobSpec(
        grace_s=None if grace_s is None else parse_duration(grace_s, "grace_s"),
        strategy="" if strategy is None else parse_strategy(strategy, "strategy"),
        over_claim="" if over_claim is None else parse_over_claim(over_claim),
    )
    return made.changed(agent=msgspec.structs.replace(made.submission.agent, job=spec))


def job_command(given: Mapping[str, object]) -> JobCommand:
    """The driver that the arguments of ``submit_job`` describe. Raises InvalidRequestError."""
    runtime_env = _runtime_env(given.get("runtime_env"))
    folder, inside = given.get("working_dir"), runtime_env.get("working_dir")
    if folder is not None and inside is not None:
        raise InvalidRequestError("working_dir is given twice: as such, and in runtime_env")
    excludes = _patterns(runtime_env.pop("excludes", None))
    archive = None
    if folder is not None or (inside is not None and not _is_uri(inside)):
        runtime_env.pop("working_dir", None)
        archive = packed_folder(_path(inside if folder is None else folder), excludes)
    checkpoint_dir = given.get("checkpoint_dir")
    return JobCommand(
        entrypoint=_entrypoint(given.get("entrypoint")),
        env=_variables(given.get("env"), "env"),
        working_dir=archive,
        runtime_env=runtime_env,
        checkpoint_dir="" if checkpoint_dir is None else _absolute(checkpoint_dir),
    )


def packed_folder(folder: Path, excludes: tuple[str, ...] = ()) -> bytes:
    """A folder as a ZIP archive, without version control and caches. Raises InvalidRequestError where it is
    none, or too large.
    """
    if not folder.is_dir():
        raise InvalidRequestError(
            f"working_dir is {shown(str(folder))}, which is no folder of this machine; a URI such as "
            "s3://... is given as runtime_env={'working_dir': ...}"
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(folder, (*_LEFT_OUT, *excludes)):
            entry = zipfile.ZipInfo(str(path.relative_to(folder)))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (path.stat().st_mode & 0o777) << 16
            archive.writestr(entry, path.read_bytes())
            if buffer.tell() > MAX_BLOB_BYTES:
                raise InvalidRequestError(
                    f"working_dir {str(folder)!r} takes more than {MAX_BLOB_BYTES // 2**20} MB packed; leave "
                    "out what the driver does not need with runtime_env={'excludes': [...]}, or put it "
                    "where all nodes find it: a shared file system, or a URI as runtime_env's working_dir"
                )
    return buffer.getvalue()


def _files(folder: Path, excludes: tuple[str, ...]) -> Iterator[Path]:
    """The files below a folder, in a fixed order, without those that a pattern matches by name or path."""
    for at, folders, files in os.walk(folder):
        below = Path(at).relative_to(folder)
        folders[:] = sorted(name for name in folders if not _matches(below / name, excludes))
        for name in sorted(files):
            if not _matches(below / name, excludes) and (Path(at) / name).is_file():
                yield Path(at) / name


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    names = (path.name, path.as_posix())
    return any(fnmatch.fnmatch(name, pattern.strip("/")) for pattern in patterns for name in names)


def _entrypoint(given: object) -> str | tuple[str, ...]:
    text = as_text(given)
    if text is not None:
        if not text.strip():
            raise InvalidRequestError("entrypoint is empty; give the command of the driver")
        return text
    words = tuple(as_elements(given, "entrypoint", "a command: a string, or a list of strings"))
    found = tuple(word for word in map(as_text, words) if word is not None)
    if not found or len(found) != len(words):
        raise InvalidRequestError(
            f"entrypoint is {shown(given)}; it must be a command: a string for the shell, or a list of "
            "strings"
        )
    return found


def _variables(given: object, what: str) -> dict[str, str]:
    if given is None:
        return {}
    pairs = [(as_text(name), as_text(value)) for name, value in as_items(given, what, "a dict")]
    found = {name: value for name, value in pairs if name and value is not None}
    if len(found) != len(pairs) or any("=" in n or "\0" in n + v for n, v in found.items()):
        raise InvalidRequestError(f"{what} must be a dict of strings by name, not {shown(given)}")
    return found


def _runtime_env(given: object) -> dict[str, object]:
    if given is None:
        return {}
    items = as_items(given, "runtime_env", "a dict")
    found = {str(name): plain_data(value, f"runtime_env[{name!r}]") for name, value in items}
    modules = found.get("py_modules") or []
    if isinstance(modules, list) and not all(map(_is_uri, modules)):
        raise InvalidRequestError(
            "runtime_env has py_modules on this machine, which the cluster cannot fetch; put them into "
            "working_dir, or give URIs"
        )
    return found


def _is_uri(given: object) -> bool:
    """Whether a folder is one that the nodes fetch, not one of this machine."""
    text = as_text(given)
    return text is not None and bool(urlsplit(text).scheme)


def _patterns(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    return tuple(map(str, as_elements(given, "runtime_env['excludes']", "a list of patterns")))


def _path(given: object) -> Path:
    return Path(_text_path(given, "working_dir")).expanduser()


def _absolute(given: object) -> str:
    """A folder on the nodes; a relative one would be another one for every process."""
    path = _text_path(given, "checkpoint_dir")
    if not Path(path).is_absolute():
        raise InvalidRequestError(f"checkpoint_dir is {shown(path)}; it must be an absolute path")
    return path


def _text_path(given: object, what: str) -> str:
    try:
        path = os.fspath(given)  # type: ignore[call-overload]  # whatever it is, it is checked here
    except TypeError:
        path = None
    text = as_text(path)
    if not text:
        raise InvalidRequestError(f"{what} must be the path of a folder, not {shown(given)}")
    return text
