"""A file that is damaged is refused whole: it is never half read, and a copy of it is kept aside."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sqlite3
from pathlib import Path

from schedulemesh.errors import JournalError
from schedulemesh.store.disk import told

_MAGIC = b"SQLite format 3\x00"
#: The file, and what of it may still lie in its write-ahead log.
_FILES = ("", "-wal")


def check_file(path: Path) -> None:
    """Raise JournalError, after keeping a copy, if the file is no whole SQLite database."""
    with told(f"the journal {path} cannot be read"):
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
        if not head:
            raise refused(path, "the file is empty, and a journal never is")
        if head != _MAGIC:
            raise refused(path, "it does not begin like an SQLite database")
        found = _quick_check(path)
    if found:
        raise refused(path, found)


def refused(path: Path, found: str) -> JournalError:
    """The error for a damaged file; a copy is made unless there is one like it."""
    try:
        copy = f"a copy of it is kept as {_kept_aside(path)}"
    except OSError as error:
        copy = f"no copy could be made ({error})"
    return JournalError(
        f"the journal {path} is damaged: {found}. Nothing of it was used, and {copy}. Put a good backup "
        "in its place; or, to give up what it knew, shut down what still runs of this scheduler, remove "
        f"{path.name} with its -wal and -shm, and start anew"
    )


def _quick_check(path: Path) -> str:
    """What SQLite finds wrong; empty: nothing."""
    # Read-only, so that nothing is moved out of the write-ahead log before a copy is made.
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        return str(error)
    return "" if found == "ok" else str(found)


def _kept_aside(path: Path) -> Path:
    """A copy beside the file; one that is the same already serves again."""
    wanted, number = _digest(path), 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        if _digest(copy) == wanted:
            return copy
        number += 1
    for suffix in _FILES:
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copy2(source, copy.with_name(copy.name + suffix))
    return copy


def _digest(path: Path) -> list[str]:
    found = []
    for suffix in _FILES:
        part = path.with_name(path.name + suffix)
        found.append(hashlib.sha256(part.read_bytes()).hexdigest() if part.exists() else "")
    return found
