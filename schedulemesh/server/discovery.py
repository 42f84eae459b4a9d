"""The file from which commands on the same machine read the address of a scheduler's HTTP API and a token.

Only its owner may read it (mode 0600), because the token in it is that of an operator.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import msgspec

#: The longest part of a path that is made of a name; of a longer one the hash is taken.
_MAX_CHARS = 200


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP API of one scheduler."""

    name: str
    namespace: str
    #: For example ``http://127.0.0.1:8090``.
    url: str
    #: The token of an operator.
    token: str
    #: The id of the process that serves it.
    pid: int


def path_of(folder: str | os.PathLike[str], namespace: str, name: str) -> Path:
    """The path of the file of a scheduler."""
    return Path(folder) / _quoted(namespace) / f"{_quoted(name)}.json"


def found(folder: str | os.PathLike[str], namespace: str, name: str) -> Discovered | None:
    """What the file of a scheduler says; None: there is none that can be read."""
    try:
        return msgspec.json.decode(path_of(folder, namespace, name).read_bytes(), type=Discovered)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write(folder: str | os.PathLike[str], discovered: Discovered) -> Path:
    """Write the file, readable by its owner only; a reader sees the former content or the new one."""
    path = path_of(folder, discovered.namespace, discovered.name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The file is created with mode 0600.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(discovered))
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def forget(folder: str | os.PathLike[str], discovered: Discovered) -> None:
    """Remove the file, unless another process has written it since."""
    if found(folder, discovered.namespace, discovered.name) == discovered:
        path_of(folder, discovered.namespace, discovered.name).unlink(missing_ok=True)


def _quoted(name: str) -> str:
    """A name as a file's name: neither a path nor hidden, and not too long for a file system."""
    quoted = quote(name, safe="").replace(".", "%2E")
    return quoted if len(quoted) <= _MAX_CHARS else sha256(name.encode()).hexdigest()
