"""The high-water mark: the last commit of a journal's file, by which a lost write-ahead log is detected."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec

from schedulemesh.errors import JournalError
from schedulemesh.store.disk import check_file_system, journal_errors
from schedulemesh.store.files import beside, opened


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """The last commit of a journal and its writer."""

    epoch: int = 0
    last: int = 0
    #: The process that wrote it, as text.
    writer: str = ""


class HighMark:
    """A small file that contains the number of the last commit, written after every commit.

    SQLite treats a write-ahead log that was lost, truncated or damaged as one that ends earlier; this file
    detects that. It is written after the commit is on disk and before anyone is told of it, so it is never
    ahead of an intact journal. Without the file nothing is checked.

    It also tells whether a commit is on disk: where ext4 is aborted while a process waits in ``fsync``, that
    may report success although what was to be written is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = beside(path, ".newest")
        self._file: int | None = None

    def read(self) -> HighWaterMark | None:
        """The mark; None: there is no such file. Raises JournalError if it is damaged."""
        with journal_errors(f"{self._path} cannot be read"):
            try:
                file = opened(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                written = os.pread(file, 4096, 0)
            finally:
                os.close(file)
        line, _, _ = written.partition(b"\n")
        check, _, content = line.partition(b" ")
        try:
            if int(check, 16) != zlib.crc32(content):
                raise ValueError("its checksum is wrong")  # noqa: TRY301  # both are damage
            return msgspec.json.decode(content, type=HighWaterMark)
        except (ValueError, msgspec.MsgspecError) as error:
            raise JournalError(
                f"{self._path}, which says how far the journal came, is damaged ({error}), so that it cannot "
                "be told whether the journal is whole. If you know that it is, remove that file"
            ) from error

    def write(self, mark: HighWaterMark) -> None:
        """Write the mark; it is not synchronised to disk.

        Raises JournalError also where the file system has failed: then what was committed before is not
        surely on disk, and the mark stays as it was.
        """
        with journal_errors(f"{self._path} cannot be written"):
            if self._file is not None and os.fstat(self._file).st_nlink == 0:
                self.close()  # the file was removed
            new = self._file is None
            if self._file is None:
                self._file = opened(self._path, os.O_RDWR | os.O_CREAT)
            else:
                check_file_system(self._file)
            content = msgspec.json.encode(mark)
            line = b"%08x %b\n" % (zlib.crc32(content), content)
            os.pwrite(self._file, line, 0)
            if new:
                os.fsync(self._file)

    def sync(self) -> None:
        """Synchronise the file to disk."""
        if self._file is not None:
            with journal_errors(f"{self._path} cannot be written"):
                os.fsync(self._file)
                check_file_system(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
