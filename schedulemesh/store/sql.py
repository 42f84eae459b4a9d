"""A journal in SQLite or PostgreSQL: on disk before ``append`` returns.

There is one writer: every append is conditional on the epoch of its writer, so a former writer that is still
running can write no longer. In addition, an advisory lock prevents a second one from starting by mistake.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import sqlite3
import threading
import time
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from schedulemesh.errors import JournalError, JournalTakenOverError, NotStorableError
from schedulemesh.store import statements
from schedulemesh.store.address import Address, JournalAddress
from schedulemesh.store.blob_keys import PORTION
from schedulemesh.store.connections import FileConnection, JournalConnection, ServerError
from schedulemesh.store.damage import refused
from schedulemesh.store.disk import is_of_content, reason_of, was_not_written
from schedulemesh.store.files import SUFFIXES, WriterLock, beside
from schedulemesh.store.high_mark import HighMark, HighWaterMark
from schedulemesh.store.journal import InDoubtError
from schedulemesh.store.opening import LOCK_SPACE, connect, enter, prepare
from schedulemesh.store.recovery import Stored

logger = logging.getLogger(__name__)

#: Seconds to wait for a lock of a process that is ending.
_PATIENCE_S = 2.0

#: Remove what belongs to a journal but its row.
_DROP_ALL = (
    statements.DROP_BLOBS,
    statements.DROP_COMMITS,
    statements.DROP_PARTS,
    statements.DROP_NOTES,
)


class _Row(NamedTuple):
    """The row of a journal."""

    epoch: int
    last: int
    base: int
    parts: int


class SqlJournal:
    """See the module. Any thread may call it; one transaction runs at a time. A path alone is the address of
    a file.

    Raises JournalError if the journal cannot be opened, is damaged or of a newer format, or with
    ``must_exist`` does not exist.
    """

    def __init__(self, address: Address | Path, *, must_exist: bool = False) -> None:
        if not isinstance(address, Address):
            address = Address(namespace="", name=address.stem, path=address)
        self.address = address
        self._epoch = 0
        self._writer = f"process {os.getpid()} on {socket.gethostname()}"
        #: The numbers of the last commit and of the last that the snapshot covers.
        self._last = self._base = 0
        #: Whether an append failed, so that it is unknown what of it is durable.
        self._doubt = False
        #: Keys of blobs that were found damaged.
        self._damaged_blobs: set[str] = set()
        #: Keys of blobs that were stored since the last snapshot, so that the next one keeps them.
        self._young_blobs: set[str] = set()
        self._turn = threading.RLock()
        self._is_closed = False
        self._lock: WriterLock | None = None
        self._high_mark: HighMark | None = None
        self._connection: JournalConnection | None = None
        #: How often the write-ahead log was removed or replaced while it was in use.
        self._lost_logs = 0
        with _journal_errors(f"the journal {address} cannot be opened"):
            prepare(address, must_exist=must_exist)
        if address.path is not None:
            self._lock, self._high_mark = WriterLock(address.path), HighMark(address.path)
        try:
            with self._transaction("be opened") as connection:
                self._id = enter(connection, address, must_exist=must_exist)
        except JournalError:
            self.close()
            raise

    @property
    def last(self) -> int:
        """See Journal."""
        return self._last

    def begin(self, *, take_over: bool = False, above: int = 0) -> int:
        """See Journal."""
        with self._transaction("be taken over") as connection:
            self._fence_others(connection, take_over=take_over)
            connection.change(statements.RAISE_EPOCH, {"journal": self._id, "above": above})
            row = self._row(connection)
        self._epoch, self._last, self._base = row.epoch, row.last, row.base
        self._young_blobs.clear()
        self._mark_height()
        return self._epoch

    def load(self) -> Stored:
        """See Journal."""
        with self._transaction("be read") as connection:
            journal = self._row(connection)
            parts = connection.rows(statements.PARTS, {"journal": self._id})
            records = connection.rows(
                statements.COMMITS_AFTER, {"journal": self._id, "number": journal.base}
            )
        self._check("part {} of the snapshot", parts, 1, journal.parts)
        self._check("commit {}", records, journal.base + 1, journal.last)
        return Stored(
            base=journal.base,
            parts=[bytes(part) for _, _, part in parts],
            records=[bytes(facts) for _, _, facts in records],
        )

    def append(self, record: bytes, new_blobs: Mapping[str, bytes]) -> None:
        """See Journal."""
        doubt, self._doubt = self._doubt, True
        number = self._last + (1 if record else 0)
        # Most submissions have a class that is stored already, and looking it up costs as much as the rest.
        old_blobs = {k: data for k, data in new_blobs.items() if k not in self._young_blobs}
        is_committing = False
        try:
            with self._transaction("be written") as connection:
                if doubt:
                    self._forget_after(connection, self._last)
                replaced = self._insert(connection, record, old_blobs, number)
                is_committing = True
            self._mark_height(number)
        except Exception as error:
            self._young_blobs.clear()
            if is_committing and not was_not_written(error.__cause__):
                raise InDoubtError(str(error) or repr(error)) from error
            if is_of_content(error.__cause__ or error):
                raise NotStorableError(f"{error}; store large values in a file") from error
            raise
        self._last, self._doubt = number, False
        self._young_blobs |= old_blobs.keys()
        self._damaged_blobs -= replaced

    def compact(
        self,
        parts: Sequence[bytes],
        upto: int,
        keep: Container[str],
        keep_after: int | None = None,
    ) -> None:
        """See Journal."""
        self._young_blobs.clear()
        with self._transaction("be compacted") as connection:
            self._claim(connection, statements.COMPACT, upto=upto, parts=len(parts))
            connection.change(statements.DROP_PARTS, {"journal": self._id})
            for number, part in enumerate(parts, 1):
                stored = {"number": number, "crc": zlib.crc32(part), "part": part}
                connection.change(statements.INSERT_PART, {"journal": self._id, **stored})
            last = upto if keep_after is None else min(upto, keep_after)
            connection.change(statements.DROP_COMMITS_UPTO, {"journal": self._id, "number": last})
            self._drop_blobs(connection, keep)
        self._base = upto
        if self._high_mark is not None:
            self._high_mark.sync()

    def blob(self, key: str) -> bytes | None:
        """See Journal."""
        with self._transaction("be read") as connection:
            rows = connection.rows(statements.BLOB, {"journal": self._id, "key": key})
        if not rows:
            return None
        data = bytes(rows[0][0])
        if hashlib.sha256(data).hexdigest() != key:
            self._damaged_blobs.add(key)
            self._young_blobs.discard(key)
            raise JournalError(
                f"the stored bytes {key} in {self.address} are damaged: they are not what this key is the "
                "SHA-256 of. They are replaced when they are given again"
            )
        return data

    def blob_sizes(self, keys: Iterable[str] | None = None) -> dict[str, int]:
        """See Journal."""
        with self._transaction("be read") as connection:
            if keys is None:
                return dict(connection.rows(statements.BLOB_SIZES, {"journal": self._id}))
            sizes: dict[str, int] = {}
            for key in keys:
                one = {"journal": self._id, "key": key}
                sizes.update(connection.rows(statements.BLOB_SIZE, one))
            return sizes

    def note(self, name: str) -> bytes | None:
        """See Journal."""
        with self._transaction("be read") as connection:
            rows = connection.rows(statements.NOTE, {"journal": self._id, "name": name})
        if not rows:
            return None
        data, crc = bytes(rows[0][0]), rows[0][1]
        if zlib.crc32(data) != crc:
            raise JournalError(f"the note {name!r} of the journal is not what was written")
        return data

    def put_note(self, name: str, data: bytes) -> None:
        """See Journal."""
        with self._transaction("be written") as connection:
            self._claim(connection, statements.STAY)
            one = {"journal": self._id, "name": name}
            connection.change(statements.DROP_NOTE, one)
            insert = {**one, "crc": zlib.crc32(data), "data": data}
            connection.change(statements.INSERT_NOTE, insert)

    def place(self) -> JournalAddress | None:
        """See Journal."""
        return JournalAddress(address=self.address, journal=self._id)

    def close(self) -> None:
        """See Journal."""
        with self._turn:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._high_mark is not None:
                self._high_mark.close()
            if self._lock is not None:
                self._lock.release()

    def destroy(self) -> None:
        """See Journal."""
        path = self.address.path
        with self._transaction("be removed") as connection:
            self._claim(connection, statements.STAY)
            if path is None:
                for statement in (*_DROP_ALL, statements.DROP_JOURNAL):
                    connection.change(statement, {"journal": self._id})
            else:
                # While this transaction lasts, nobody can take the journal over.
                for suffix in SUFFIXES:
                    beside(path, suffix).unlink(missing_ok=True)
        self.close()

    def _insert(
        self,
        connection: JournalConnection,
        record: bytes,
        new_blobs: Mapping[str, bytes],
        number: int,
    ) -> set[str]:
        """Write what is appended; nothing: test that it could be. Returns which damaged blobs it replaces."""
        self._claim(connection, statements.ADVANCE, previous=self._last, number=number)
        if record:
            stored = {"number": number, "crc": zlib.crc32(record), "facts": record}
            connection.change(statements.INSERT_COMMIT, {"journal": self._id, **stored})
        damaged = self._damaged_blobs & new_blobs.keys()
        for key in damaged:
            connection.change(statements.DROP_BLOB, {"journal": self._id, "key": key})
        for key, data in new_blobs.items():
            self._put_blob(connection, key, data, number)
        if not record and not new_blobs:
            self._write_something(connection)
        return damaged

    def _row(self, connection: JournalConnection) -> _Row:
        rows = connection.rows(statements.JOURNAL, {"journal": self._id})
        if not rows:
            raise JournalError(f"the journal {self.address} was removed while it was in use")
        return _Row(*rows[0])

    def _claim(self, connection: JournalConnection, change: str, **values: int) -> None:
        """Update the journal's row if this epoch may still write. Call it first in a transaction, so that
        writers wait for each other.
        """
        parameters = {"journal": self._id, "epoch": self._epoch, **values}
        if connection.change(change, parameters) != 1:
            raise JournalTakenOverError(
                f"epoch {self._epoch} of the journal {self.address} is over: another process has taken "
                "it over and writes now"
            )

    def _forget_after(self, connection: JournalConnection, last: int) -> None:
        """Remove what became durable of a failed append, which nobody was told of."""
        self._claim(connection, statements.GO_BACK, number=last)
        connection.change(statements.DROP_COMMITS_AFTER, {"journal": self._id, "number": last})

    def _write_something(self, connection: JournalConnection) -> None:
        """Write a row and delete it, to test the disk: updating a row to the same values writes nothing."""
        number = self._last + 1
        row = {"journal": self._id, "number": number, "crc": 0, "facts": b""}
        connection.change(statements.INSERT_COMMIT, row)
        connection.change(
            statements.DROP_COMMITS_AFTER, {"journal": self._id, "number": self._last}
        )

    def _put_blob(self, connection: JournalConnection, key: str, data: bytes, number: int) -> None:
        one = {"journal": self._id, "key": key}
        stored_numbers = connection.rows(statements.BLOB_NUMBER, one)
        if stored_numbers:
            # An update writes all bytes of the row, so it is done at most once per snapshot.
            if stored_numbers[0][0] <= self._base:
                connection.change(statements.RENEW_BLOB, {**one, "number": number})
            return
        connection.change(
            statements.INSERT_BLOB, {**one, "number": number, "crc": zlib.crc32(data), "data": data}
        )

    def _drop_blobs(self, connection: JournalConnection, keep: Container[str]) -> None:
        """In portions: to read, or to free, all keys at once would take the interpreter from others."""
        old = {"journal": self._id, "number": self._base}
        after = ""
        while True:
            portion = {**old, "after": after, "limit": PORTION}
            keys = [key for (key,) in connection.rows(statements.BLOBS_UPTO, portion)]
            unused = [{**old, "key": key} for key in keys if key not in keep]
            if unused:
                connection.change_each(statements.DROP_BLOB_UPTO, unused)
            if len(keys) < PORTION:
                return
            after = keys[-1]

    def _check(self, what: str, rows: Sequence[Any], first: int, last: int) -> None:
        """Raise JournalError unless the numbers run from first to last and each checksum is right."""
        numbers = [number for number, _, _ in rows]
        if numbers != list(range(first, last + 1)):
            missing = sorted(set(range(first, last + 1)) - set(numbers)) or numbers
            raise self._damaged(f"{what.format(missing[0])} is missing or out of place")
        for number, crc, data in rows:
            if zlib.crc32(data) != crc:
                raise self._damaged(f"{what.format(number)} is not what was written")

    def _damaged(self, problem: str) -> JournalError:
        if self.address.path is not None:
            return refused(self.address.path, problem)
        return JournalError(
            f"the journal {self.address} is damaged: {problem}. Nothing of it was used; restore its rows "
            "from a backup of the database, or use another name"
        )

    def _fence_others(self, connection: JournalConnection, *, take_over: bool) -> None:
        """Take the lock, or raise JournalError if another process holds it. With ``take_over`` only the epoch
        fences that process.
        """
        until = time.monotonic() + (0.0 if take_over else _PATIENCE_S)
        while holder := self._take_lock(connection):
            if time.monotonic() >= until:
                break
            time.sleep(0.05)  # neither kind of lock can be awaited with a time limit
        else:
            return
        if not take_over:
            raise JournalError(
                f"the journal {self.address} is in use by {holder}; end that scheduler first, or use "
                "another name or state_path"
            )
        logger.warning("taking the journal %s over from %s", self.address, holder)

    def _take_lock(self, connection: JournalConnection) -> str:
        """Take the lock. Returns who holds it, if another process does, else an empty text."""
        if self._lock is not None and self._high_mark is not None:
            return "" if self._lock.take() else self._holder(self._high_mark)
        ((is_locked,),) = connection.rows(
            statements.TRY_LOCK, {"space": LOCK_SPACE, "journal": self._id}
        )
        return "" if is_locked else "another connection to the database"

    def _holder(self, high_mark: HighMark) -> str:
        mark = high_mark.read()
        return "an unknown process" if mark is None or not mark.writer else mark.writer

    def _mark_height(self, last: int | None = None) -> None:
        """Write the high-water mark of a file."""
        if self._high_mark is not None:
            last = self._last if last is None else last
            self._high_mark.write(HighWaterMark(epoch=self._epoch, last=last, writer=self._writer))

    def _connected(self) -> JournalConnection:
        if self._is_closed:
            # A thread that comes late would open it again, and hold the lock that a successor needs.
            raise JournalError(f"the journal {self.address} was closed")
        if self.address.path is not None:
            self._check_same_file()
            self._check_same_log()
        if self._connection is None or not self._connection.is_open:
            self._connection = connect(self.address)
            if self.address.url is not None and self._epoch:
                with self._connection.transaction():
                    self._take_lock(self._connection)
        return self._connection

    def _check_same_file(self) -> None:
        path = self.address.path
        if path is None or self._lock is None:
            return
        if os.stat(path).st_ino != self._lock.inode:  # noqa: PTH116  # in every commit; pathlib is slower
            raise JournalError(f"the file {path} was replaced by another while it was in use")

    def _check_same_log(self) -> None:
        """Save what is in a write-ahead log that was removed or replaced; a new connection makes another."""
        connection = self._connection
        if isinstance(connection, FileConnection) and connection.has_lost_log():
            connection.save_lost_log()
            self._lost_logs += 1
            logger.error(
                "%s-wal was removed or replaced while it was in use, %d times so far; its content was saved "
                "in the journal's file, and nothing is lost. Remove no file beside a journal in use",
                self.address.path,
                self._lost_logs,
            )

    @contextlib.contextmanager
    def _transaction(self, what: str) -> Iterator[JournalConnection]:
        with self._turn, _journal_errors(f"the journal {self.address} cannot {what}"):
            connection = self._connected()
            with connection.transaction():
                yield connection


@contextlib.contextmanager
def _journal_errors(what: str) -> Iterator[None]:
    """Turn errors of the database into JournalError: what failed, and why."""
    try:
        yield
    except (ServerError, OSError, sqlite3.Error) as error:
        reason = getattr(error, "orig", None) or error
        raise JournalError(f"{what}: {reason_of(reason)}") from error
