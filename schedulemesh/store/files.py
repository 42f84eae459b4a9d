"""The files of a journal on disk: regular files of this user that nobody else writes, and their lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from schedulemesh.errors import JournalError
from schedulemesh.store.disk import journal_errors

logger = logging.getLogger(__name__)

#: The journal's file, and what may lie beside it: SQLite's write-ahead log with its index, and the high mark.
SUFFIXES = ("", "-wal", "-shm", ".newest")

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def beside(path: Path, suffix: str) -> Path:
    """The file of a journal with this suffix."""
    return path.with_name(path.name + suffix)


def is_there(path: Path) -> bool:
    """Whether the journal's file exists. Raises JournalError where it, or a file beside it, is a link, is no
    regular file, or belongs to somebody else; permissions that are too wide are narrowed.
    """
    _remove_drafts(path)
    there = {suffix: _checked(beside(path, suffix)) for suffix in SUFFIXES}
    return there[""]


def check_folder(folder: Path) -> None:
    """Raise JournalError where somebody else could put other files in the journal's place."""
    with journal_errors(f"the folder {folder} cannot be used"):
        found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise JournalError(
            f"the folder {folder} belongs to user {found.st_uid}, and this is user {os.geteuid()}; give "
            "it to this user (chown), or choose another state_path"
        )
    if found.st_mode & _OTHERS_WRITE:
        raise JournalError(
            f"others may write to the folder {folder} (mode {stat.S_IMODE(found.st_mode):04o}), and so "
            f"could replace the journal; run `chmod 700 {folder}`, or choose another state_path"
        )


def _checked(path: Path) -> bool:
    with journal_errors(f"{path} cannot be used"):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFLNK:
            raise JournalError(
                f"{path} is a symbolic link to {path.readlink()}, and a journal is never reached through "
                "one; give the folder of the file itself as state_path"
            )
        if kind != stat.S_IFREG:
            raise JournalError(
                f"{path} is {_KINDS.get(kind, 'no regular file')}, where the journal's file must be; "
                "remove it, or choose another state_path"
            )
        if found.st_uid != os.geteuid():
            raise JournalError(
                f"{path} belongs to user {found.st_uid}, and this is user {os.geteuid()}; give it to this "
                "user (chown), or choose another state_path"
            )
        if found.st_nlink > 1:
            raise JournalError(
                f"{path} has {found.st_nlink} hard links, so its write-ahead log could lie under another "
                "name; remove the other names"
            )
        if found.st_mode & 0o077:
            logger.warning(
                "%s had mode %04o; only its owner may read it from now on",
                path,
                stat.S_IMODE(found.st_mode),
            )
            path.chmod(0o600)
    return True


def _remove_drafts(path: Path) -> None:
    """Remove what a process left that was killed while it made the journal, or tried the disk."""
    marks = (f".{path.name}-", ".probe-")
    with contextlib.suppress(OSError):
        for found in list(path.parent.iterdir()):
            mark = next((mark for mark in marks if found.name.startswith(mark)), None)
            if mark is not None and not _lives(found.name.removeprefix(mark).partition("-")[0]):
                found.unlink(missing_ok=True)


def _lives(number: str) -> bool:
    """Whether the process with this number, from an unfinished file's name, still lives."""
    if not number.isdigit():
        return True  # none of ours
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def opened(path: Path, flags: int) -> int:
    """A descriptor of a regular file, through no link; a pipe there does not block."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise JournalError(f"{path} is no regular file")
    return file


class WriterLock:
    """An advisory lock on the journal's file itself, by whatever name it is reached, for as long as its
    writer lives.

    The descriptor must be closed after SQLite's: closing any of a file's descriptors ends SQLite's own locks.
    """

    def __init__(self, path: Path) -> None:
        with journal_errors(f"the journal {path} cannot be locked"):
            self._file: int | None = opened(path, os.O_RDONLY)
            self.inode = os.fstat(self._file).st_ino

    def take(self) -> bool:
        """Take it if nobody else has it."""
        if self._file is None:
            raise JournalError("the journal was closed")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise JournalError(f"the journal's file cannot be locked: {error}") from error
        return True

    def release(self) -> None:
        """Let it go."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
