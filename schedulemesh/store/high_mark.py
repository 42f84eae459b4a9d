"""How far a journal's file came, kept beside it: what a lost write-ahead log is noticed by."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec

from schedulemesh.errors import JournalError
from schedulemesh.store.disk import journal_errors
from schedulemesh.store.files import beside, opened


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How far a journal came."""

    epoch: int = 0
    last: int = 0
    #: Which process wrote it.
    writer: str = ""


class HighMark:
    """A small file that says how far the journal came, written after every commit.

    SQLite takes a write-ahead log that was lost, cut or damaged for one that ends earlier; this file tells.
    It is written before anybody hears of the commit, and never before the commit is on disk, so it is never
    ahead of a whole journal. Without it nothing is checked.
    """

    def __init__(self, path: Path) -> None:
        self._path = beside(path, ".newest")
        self._file: int | None = None

    def read(self) -> Mark | None:
        """What was written last; None: there is no such file. Raises JournalError where it is damaged."""
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
            return msgspec.json.decode(content, type=Mark)
        except (ValueError, msgspec.MsgspecError) as error:
            raise JournalError(
                f"{self._path}, which says how far the journal came, is damaged ({error}), so that it cannot "
                "be told whether the journal is whole. If you know that it is, remove that file"
            ) from error

    def write(self, mark: Mark) -> None:
        """Say how far the journal came."""
        with journal_errors(f"{self._path} cannot be written"):
            new = self._file is None
            if self._file is None:
                self._file = opened(self._path, os.O_RDWR | os.O_CREAT)
            content = msgspec.json.encode(mark)
            line = b"%08x %b\n" % (zlib.crc32(content), content)
            os.pwrite(self._file, line, 0)
            if new:
                os.fsync(self._file)

    def sync(self) -> None:
        """Have it on disk, too."""
        if self._file is not None:
            with journal_errors(f"{self._path} cannot be written"):
                os.fsync(self._file)

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
