"""Checks whether a disk can hold a journal, and describes disk errors."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from schedulemesh.config.private_files import make_private_folder
from schedulemesh.errors import JournalError

logger = logging.getLogger(__name__)

#: File systems shared between machines, on which SQLite's write-ahead log is known to lose or corrupt data.
BREAKING = frozenset(
    (
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smb2",
            "smbfs",
            "ncpfs",
            "afs",
            "fuse.sshfs",
            "fuse.rclone",
        ),
        *("fuse.s3fs", "fuse.goofys", "fuse.mountpoint-s3", "fuse.gcsfuse", "fuse.blobfuse"),
        *("fuse.blobfuse2", "fuse.davfs", "fuse.curlftpfs"),
    )
)
#: Prefixes of file systems that may be shared between machines: a warning is logged, the probe decides.
DOUBTFUL = (
    "fuse",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ocfs2",
    "gfs2",
    "virtiofs",
)

_ADVICE = "use a folder on a local disk, or a PostgreSQL URL, as state_path"
_MOUNTS = Path("/proc/mounts")


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the file system of a folder, as the kernel names it; empty: unknown."""
    where = folder.resolve()
    best, kind = -1, ""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, point, mounted_kind = line.split(" ", 3)[:3]
        mounted = Path(point.encode().decode("unicode_escape"))
        depth = len(mounted.parts)
        # Of two mounts on the same point the later one hides the earlier.
        if depth >= best and (where == mounted or mounted in where.parents):
            best, kind = depth, mounted_kind
    return kind


def probe(folder: Path, mounts: Path = _MOUNTS) -> None:
    """Write a small database to the folder, with a write-ahead log and fsync, and read it back.

    Raises JournalError, which says what does not work and what to do.
    """
    kind = file_system(folder, mounts)
    if kind in BREAKING:
        raise JournalError(
            f"{folder} is on a network file system ({kind}), on which SQLite's write-ahead log is not "
            f"safe; {_ADVICE}"
        )
    if kind.startswith(DOUBTFUL):
        logger.warning(
            "the journal lies on %s in %s; if other machines share it, %s", kind, folder, _ADVICE
        )
    file = folder / f".probe-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with journal_errors(f"no journal can be kept in {folder}" + (f" ({kind})" if kind else "")):
            make_private_folder(folder)
            file.touch(mode=0o600)  # its error says more than that of SQLite
            _write_and_read(file)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(OSError):
                file.with_name(file.name + suffix).unlink()


def _write_and_read(file: Path) -> None:
    written = os.urandom(64 * 1024)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise JournalError(f"{file.parent} cannot hold a write-ahead log; {_ADVICE}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE probe (data BLOB)")
        connection.execute("INSERT INTO probe VALUES (?)", (written,))
    with contextlib.closing(sqlite3.connect(file)) as connection:
        if connection.execute("SELECT data FROM probe").fetchone()[0] != written:
            raise JournalError(f"{file.parent} does not give back what was written; {_ADVICE}")


@contextlib.contextmanager
def journal_errors(what: str) -> Iterator[None]:
    """Turn errors of the system and of SQLite into JournalError: what failed, why, and what to do."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"{what}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """The message of an error, and what to do where that is known."""
    text = str(error)
    number = getattr(error, "errno", None)
    if number == errno.ENOSPC or "disk is full" in text:
        return f"the disk is full ({text}); make room, and it goes on by itself"
    if number == errno.EROFS or "readonly database" in text or "read-only" in text.lower():
        return f"it can only be read ({text}); mount it writable or choose another state_path"
    if number in (errno.EACCES, errno.EPERM):
        return f"permission is missing ({text}); give this user the folder or choose another state_path"
    return text


def check_file_system(file: int) -> None:
    """Raise OSError if the file system of an open file with content has failed.

    ``fsync`` may report success in that moment. Allocating a block that the file already has changes nothing,
    but needs a transaction of the file system, which one that has failed refuses from its first moment on.
    """
    if sys.platform != "linux":
        return
    try:
        os.posix_fallocate(file, 0, 1)
    except OSError as error:
        # Others say nothing about what is on disk: the file system may be full, or not know this call.
        if error.errno in (errno.EIO, errno.EROFS):
            raise


def was_not_written(error: BaseException | None) -> bool:
    """Whether the error of a commit says that the log lacks its end, without which it is not read. After any
    other, above all of fsync, the log may have all of it.
    """
    # Python 3.10 does not have the name: there, every commit that failed may be durable.
    result = getattr(error, "sqlite_errorname", "")
    return result in ("SQLITE_FULL", "SQLITE_IOERR_WRITE")


def is_of_content(error: BaseException) -> bool:
    """Whether a database refuses the values themselves, such as one above its limit, whatever the disk."""
    original = getattr(error, "orig", None) or error
    # Of PostgreSQL: 22 is an exception of data, 54 a limit of the program.
    state = getattr(original, "sqlstate", None) or ""
    return isinstance(original, (sqlite3.DataError, OverflowError)) or state[:2] in ("22", "54")
