"""The file from which a user's processes on the same machine read a scheduler's token and the address of its
HTTP API.

Only its owner may read it (mode 0600), because the token in it is that of an operator.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import msgspec

from schedulemesh.config.private_files import make_private_folder
from schedulemesh.errors import NotAllowedError

#: The longest part of a path that is made of a name; of a longer one the hash is taken.
_MAX_CHARS = 200


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    """The token of one scheduler, and its HTTP API."""

    name: str
    namespace: str
    #: For example ``http://127.0.0.1:8090``; empty: it has no HTTP API.
    url: str
    #: The token of an operator.
    token: str
    #: The id of the process that serves the HTTP API.
    pid: int
    #: What only that process and readers of this file know; with it the process proves that it is the one
    #: that wrote the file (``protocol.credentials.server_proof``).
    key: str = ""
    #: Addresses of the scheduler's Ray cluster as seen from this machine, as ``10.0.0.7:6379``.
    cluster: tuple[str, ...] = ()
    #: The other schedulers of the cluster, as ``namespace/name``, a few seconds ago.
    others: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Discovered(name={self.name!r}, namespace={self.namespace!r}, url={self.url!r})"


def path_of(folder: str | os.PathLike[str], namespace: str, name: str) -> Path:
    """The path of the file of a scheduler."""
    return Path(folder) / _quoted(namespace) / f"{_quoted(name)}.json"


def found(folder: str | os.PathLike[str], namespace: str, name: str) -> Discovered | None:
    """What the file of a scheduler says; None: there is none that can be read.

    Raises NotAllowedError where another user owns the file, or may read or change it, or it is no file.
    """
    try:
        return _read(path_of(folder, namespace, name))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def all_found(folder: str | os.PathLike[str], namespace: str | None = None) -> list[Discovered]:
    """What the files of all schedulers say, or of those of one namespace; without those that cannot be read,
    or that others may change.
    """
    every = []
    for path in sorted(Path(folder).glob("*/*.json")):
        with contextlib.suppress(
            OSError, msgspec.MsgspecError, NotAllowedError, UnicodeDecodeError
        ):
            every.append(_read(path))
    return [file for file in every if namespace in (None, file.namespace)]


def _read(path: Path) -> Discovered:
    """Raises NotAllowedError for a file that is not this user's alone."""
    with open(path, "rb", opener=_without_waiting) as file:
        _check_owner(path, os.fstat(file.fileno()))
        return msgspec.json.decode(file.read(), type=Discovered)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; what is a named pipe instead is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Raise NotAllowedError unless the file is this user's alone. It is checked as opened, because the path
    may lead elsewhere a moment later.
    """
    if not stat.S_ISREG(status.st_mode):
        raise NotAllowedError(f"{path} is no regular file, so it is not read; remove it")
    if status.st_uid != os.geteuid():
        raise NotAllowedError(
            f"{path} belongs to the user with the number {status.st_uid}, so its token is not used; remove "
            "the file, or set SCHEDULEMESH_TOKEN"
        )
    if status.st_mode & 0o077:
        raise NotAllowedError(
            f"{path} may be read or changed by others (mode {stat.S_IMODE(status.st_mode):04o}), so its "
            "token is not used: rotate it (`schedulemesh tokens rotate`), and set the mode with `chmod 600`"
        )


def write(folder: str | os.PathLike[str], discovered: Discovered) -> Path:
    """Write the file, readable by its owner only; a reader sees the former content or the new one."""
    of_namespace = Path(folder) / _quoted(discovered.namespace)
    return write_private(of_namespace, discovered.name, ".json", msgspec.json.encode(discovered))


def write_private(folder: Path, name: str, suffix: str, content: bytes) -> Path:
    """Write the file of a name into a folder, which is created where it is missing; only its owner may read
    it, and a reader sees the former content or the new one. Raises OSError.
    """
    path = folder / f"{_quoted(name)}{suffix}"
    make_private_folder(folder)
    # The file is created with mode 0600.
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def forget(folder: str | os.PathLike[str], discovered: Discovered) -> None:
    """Remove the file, unless another process has written it since."""
    with contextlib.suppress(NotAllowedError):
        if found(folder, discovered.namespace, discovered.name) == discovered:
            path_of(folder, discovered.namespace, discovered.name).unlink(missing_ok=True)


def _quoted(name: str) -> str:
    """A name as a file's name: neither a path nor hidden, and not too long for a file system."""
    quoted = quote(name, safe="").replace(".", "%2E")
    return quoted if len(quoted) <= _MAX_CHARS else sha256(name.encode()).hexdigest()
