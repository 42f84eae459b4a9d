"""The files of a journal: checks that they are regular files of this user alone, and locks them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from schedulemesh.config.private_files import check_owner
from schedulemesh.errors import JournalError
from schedulemesh.store.disk import journal_errors

logger = logging.getLogger(__name__)

#: The journal's file, SQLite's write-ahead log and its index, and the high-water mark.
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
    """The path of the journal's file with this suffix."""
    return path.with_name(path.name + suffix)


def is_there(path: Path) -> bool:
    """Whether the journal's file exists. Permissions that are too wide are narrowed.

    Raises JournalError if one of the files is a link, not a regular file, or owned by another user.
    """
    _remove_drafts(path)
    there = {suffix: _check_file(beside(path, suffix)) for suffix in SUFFIXES}
    return there[""]


def check_folder(folder: Path) -> None:
    """Raise JournalError if another user could replace the journal in this folder, or this folder in the one
    above it.
    """
    with journal_errors(f"the folder {folder} cannot be used"):
        check_owner(folder.parent)
        check_owner(folder)
        status = folder.stat()
    if status.st_mode & _OTHERS_WRITE:
        raise JournalError(
            f"others may write to the folder {folder} (mode {stat.S_IMODE(status.st_mode):04o}), and so "
            f"could replace the journal; run `chmod 700 {folder}`, or choose another state_path"
        )


def _check_file(path: Path) -> bool:
    """Whether there is such a file, which only its owner may read from then on. Raises JournalError where it
    must not be used.
    """
    with journal_errors(f"{path} cannot be used"):
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        kind = stat.S_IFMT(status.st_mode)
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
        if status.st_uid != os.geteuid():
            raise JournalError(
                f"{path} belongs to user {status.st_uid}, and this is user {os.geteuid()}; give it to this "
                "user (chown), or choose another state_path"
            )
        if status.st_nlink > 1:
            raise JournalError(
                f"{path} has {status.st_nlink} hard links, so its write-ahead log could lie under another "
                "name; remove the other names"
            )
        if status.st_mode & 0o077:
            logger.warning(
                "%s had mode %04o; only its owner may read it from now on",
                path,
                stat.S_IMODE(status.st_mode),
            )
            path.chmod(0o600)
    return True


def _remove_drafts(path: Path) -> None:
    """Remove unfinished files of processes that were killed while creating a journal or probing the disk."""
    marks = (f".{path.name}-", ".probe-")
    with contextlib.suppress(OSError):
        for file in list(path.parent.iterdir()):
            mark = next((mark for mark in marks if file.name.startswith(mark)), None)
            if mark is not None and not _lives(file.name.removeprefix(mark).partition("-")[0]):
                file.unlink(missing_ok=True)


def _lives(number: str) -> bool:
    """Whether the process that is named in an unfinished file is still running."""
    if not number.isdigit():
        return True  # not a file of this module
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def opened(path: Path, flags: int) -> int:
    """Open a regular file without following links; a pipe in its place does not block."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise JournalError(f"{path} is no regular file")
    return file


def create_if_absent(path: Path) -> None:
    """Create an empty file that only its owner may read. One that exists is not opened: a process that closes
    a descriptor of a file ends the locks that SQLite has on it for this process, and another process that
    closes the database then takes the write-ahead log away from the connections of this one.

    Raises JournalError where something else than a regular file has its name.
    """
    try:
        is_regular = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            os.close(opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        return
    if not is_regular:
        raise JournalError(f"{path} is no regular file")


class WriterLock:
    """An advisory lock on the journal's file, independent of the path by which it is reached. It is held
    until the writer releases it or its process ends.

    Release it after SQLite has closed the file: closing any descriptor of a file ends SQLite's own locks.
    """

    def __init__(self, path: Path) -> None:
        with journal_errors(f"the journal {path} cannot be locked"):
            self._file: int | None = opened(path, os.O_RDONLY)
            self.inode = os.fstat(self._file).st_ino

    def take(self) -> bool:
        """Take the lock unless another process holds it; whether it was taken."""
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
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
