"""Detects a damaged journal file. It is refused as a whole, never read in part, and a copy of it is kept."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sqlite3
from pathlib import Path

from schedulemesh.errors import JournalError
from schedulemesh.store.disk import journal_errors
from schedulemesh.store.files import beside
from schedulemesh.store.high_mark import HighMark, HighWaterMark

_ENDS = "SELECT max(epoch), max(last) FROM schedulemesh_journals"
_MAGIC = b"SQLite format 3\x00"
#: The suffixes of the files to copy: the file itself, and its write-ahead log.
_FILES = ("", "-wal")


def check_file(path: Path) -> None:
    """Raise JournalError, after making a copy, if the file is not an intact SQLite database, or if commits
    that it once contained are missing.
    """
    # Read first, because a writer that is still running may append commits meanwhile.
    newest = HighMark(path).read()
    with journal_errors(f"the journal {path} cannot be read"):
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
        if not head:
            raise refused(path, "the file is empty, and a journal never is")
        if head != _MAGIC:
            raise refused(path, "it does not begin like an SQLite database")
        problem = _quick_check(path)
        if problem:
            raise refused(path, problem)
        if newest is not None:
            _check_end(path, newest)


def refused(path: Path, problem: str) -> JournalError:
    """The error for a damaged file. Makes a copy, unless an identical one exists."""
    return JournalError(
        f"the journal {path} is damaged: {problem}. Nothing of it was used, and {_copied(path)}. Put a good "
        "backup in its place, without the old -wal, -shm and .newest; or, to give up what it knew, shut down "
        f"what still runs of this scheduler, remove {path.name} with these three, and start anew"
    )


def _copied(path: Path) -> str:
    try:
        return f"a copy of it is kept as {_kept_aside(path)}"
    except OSError as error:
        return f"no copy could be made ({error})"


def _check_end(path: Path, newest: HighWaterMark) -> None:
    """Raise JournalError where the last commits are missing."""
    with contextlib.closing(_read_only(path)) as connection:
        try:
            epoch, last = connection.execute(_ENDS).fetchone()
        except sqlite3.OperationalError:
            return  # not the tables of a journal, which opening it finds out
    if (last or 0) >= newest.last and (epoch or 0) >= newest.epoch:
        return
    raise JournalError(
        f"the journal {path} ends with commit {last} of epoch {epoch}, but commit {newest.last} of epoch "
        f"{newest.epoch} was on disk: its write-ahead log ({path.name}-wal) was lost or damaged, or an older "
        f"copy was put in its place. Nothing of it was used, and {_copied(path)}. Bring the missing file "
        "back; or, to go on from this copy and forget what came after it, remove "
        f"{beside(path, '.newest').name} beside it: agents that it does not know are then kept as orphans"
    )


def _quick_check(path: Path) -> str:
    """The first problem that SQLite finds; empty: none."""
    try:
        with contextlib.closing(_read_only(path)) as connection:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        return str(error)
    return "" if answer == "ok" else str(answer)


def _read_only(path: Path) -> sqlite3.Connection:
    """A connection that moves nothing from the write-ahead log into the file before a copy is made."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)


def _kept_aside(path: Path) -> Path:
    """The path of a copy in the same folder; an identical copy is used again."""
    digest, number = _digest(path), 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        if _digest(copy) == digest:
            return copy
        number += 1
    try:
        for suffix in _FILES:
            source = beside(path, suffix)
            if source.exists():
                shutil.copy2(source, beside(copy, suffix))
    except OSError:
        # On a full disk each attempt to open the journal would leave another part of it.
        for suffix in _FILES:
            beside(copy, suffix).unlink(missing_ok=True)
        raise
    return copy


def _digest(path: Path) -> list[str]:
    hashes = []
    for suffix in _FILES:
        part = beside(path, suffix)
        hashes.append(hashlib.sha256(part.read_bytes()).hexdigest() if part.exists() else "")
    return hashes
