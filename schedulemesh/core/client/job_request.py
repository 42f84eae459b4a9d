"""The submission of a job from the process of its caller, whose folders are packed and sent."""

from __future__ import annotations

import fnmatch
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from schedulemesh.config.settings import MAX_BLOB_BYTES
from schedulemesh.core.backend.job_packing import packed_runner
from schedulemesh.core.client.task_request import Caller, Submission, parent_of, submitter
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.job_command import JobCommand, parse_command
from schedulemesh.protocol.submissions import job_request

#: What a working folder has that a driver does not need.
_LEFT_OUT = (".git", ".venv", "__pycache__", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")


def job_submission(caller: Caller, given: Mapping[str, object]) -> Submission:
    """The submission of a job from the arguments of ``submit_job``, by name. Raises InvalidRequestError."""
    by = submitter(caller, parent_of(caller, given))
    request = job_request(given, by, packed_runner(job_command(given)))
    return Submission(request=request, refs=([], []))


def job_command(given: Mapping[str, object]) -> JobCommand:
    """The driver that the arguments of ``submit_job`` describe. Raises InvalidRequestError."""
    return parse_command(given, packed_folder)


def packed_folder(folder: Path, excludes: tuple[str, ...] = ()) -> bytes:
    """A folder as a ZIP archive, without version control and caches. Raises InvalidRequestError where it is
    none, or too large.
    """
    if not os.path.isdir(folder):  # noqa: PTH112  # Path.is_dir raises for names that are too long
        raise InvalidRequestError(
            f"working_dir is {shown(str(folder))}, which is no folder of this machine; a URI such as "
            "s3://... is given as runtime_env={'working_dir': ...}"
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(folder, (*_LEFT_OUT, *excludes)):
            _add(archive, path, str(path.relative_to(folder)))
            if buffer.tell() > MAX_BLOB_BYTES:
                raise InvalidRequestError(
                    f"working_dir {str(folder)!r} takes more than {MAX_BLOB_BYTES // 2**20} MB packed; leave "
                    "out what the driver does not need with runtime_env={'excludes': [...]}, or put it "
                    "where all nodes find it: a shared file system, or a URI as runtime_env's working_dir"
                )
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    try:
        entry.external_attr = (path.stat().st_mode & 0o777) << 16
        contents = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"working_dir has {name!r}, which cannot be read ({error.strerror}); make it readable, or leave "
            "it out with runtime_env={'excludes': [...]}"
        ) from error
    archive.writestr(entry, contents)


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
