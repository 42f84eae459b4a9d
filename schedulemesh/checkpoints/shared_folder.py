"""A folder that several ranks write, each its part, and that appears under its name when all have done so.

The ranks share a file system and need no coordinator: each leaves a record when its part is on disk, and the
rank that finds all records completes the folder and renames it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from schedulemesh.errors import InvalidRequestError

_RECORDS = ".written"
_CLAIMED = ".completing"


class SharedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is being written."""

    #: Where it appears when it is complete.
    path: Path
    #: Where it is being written.
    partial: Path
    ranks: int

    @classmethod
    def of(
        cls, path: str | Path, ranks: int, rank: int, content: bytes, attempt: str
    ) -> SharedFolder:
        """The folder at ``path``, which must not exist; ``content`` is the same on ranks that write the same.

        Ranks with another content or ``attempt`` write a folder of their own, and do not mix with this one.
        """
        final = Path(path)
        if final.exists():
            raise InvalidRequestError(f"{final} exists; allowed is the path of a new folder")
        mark = hashlib.sha256(msgspec.msgpack.encode((content, ranks, attempt))).hexdigest()[:16]
        partial = final.with_name(f".{final.name}.partial-{mark}")
        (partial / _RECORDS).mkdir(parents=True, exist_ok=True)
        (partial / _RECORDS / str(rank)).unlink(missing_ok=True)
        return cls(path=final, partial=partial, ranks=ranks)

    def finish(
        self, rank: int, record: bytes, complete: Callable[[Sequence[bytes]], None] | None = None
    ) -> bool:
        """Records that a rank has written its part; True: all have, and the folder is at its path.

        ``complete`` gets the records by rank before the folder is renamed, on one rank.
        """
        record_path = self.partial / _RECORDS / f"{rank}.tmp"
        try:
            durable(record_path, record)
            record_path.rename(record_path.with_suffix(""))
            every = [self.partial / _RECORDS / str(each) for each in range(self.ranks)]
            records = [path.read_bytes() for path in every]
            # Several ranks may get here at a time; the records can be renamed by one of them only.
            (self.partial / _RECORDS).rename(self.partial / _CLAIMED)
        except FileNotFoundError:
            return False  # not all have written, or another rank completes the folder
        if complete is not None:
            complete(records)
        shutil.rmtree(self.partial / _CLAIMED)
        self.partial.rename(self.path)
        for earlier in self.path.parent.glob(f".{glob.escape(self.path.name)}.partial-*"):
            shutil.rmtree(earlier, ignore_errors=True)
        return True


def durable(path: Path, content: bytes) -> None:
    """Writes a file, and waits until it is on disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
