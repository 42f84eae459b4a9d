"""Connections of a journal to its database, and statements as texts that SQLite and PostgreSQL both take.

A file is reached through Python's own module: through SQLAlchemy a commit takes twice the processor time, and
importing SQLAlchemy takes a tenth of a supervisor's restart. A database is reached through SQLAlchemy, which
is imported only there (``store.server``).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

Values = Mapping[str, object]


class ServerError(Exception):
    """An error of a database server; ``orig`` is its driver's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.orig: object = getattr(error, "orig", None) or error


class JournalConnection(Protocol):
    """A connection, on which one transaction runs at a time. Raises sqlite3.Error, OSError or ServerError."""

    @property
    def is_open(self) -> bool:
        """Whether it can be used; it closes itself after an error that it cannot be used after."""

    def transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction. It is committed at the end of the block, or rolled back where that raises."""

    def rows(self, query: str, values: Values = ...) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""

    def change(self, statement: str, values: Values = ...) -> int:
        """The number of rows that a statement has changed."""

    def change_each(self, statement: str, rows: Sequence[Values]) -> None:
        """Execute a statement once with each of these values."""

    def close(self) -> None:
        """Close it."""


class FileConnection:
    """A connection to an SQLite file, which exists: one that was lost is not created again."""

    def __init__(self, path: Path) -> None:
        uri = f"file:{quote(str(path))}?mode=rw"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._log = f"{path}-wal"
        #: The inode of the write-ahead log; None: no transaction has opened it yet.
        self._log_inode: int | None = None
        self.is_open = True
        try:
            set_pragmas(self._connection)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See JournalConnection."""
        self._connection.execute("BEGIN")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        if self._log_inode is None:
            self._log_inode = inode_of(self._log)

    def has_lost_log(self) -> bool:
        """Whether its write-ahead log was removed or replaced: it still writes to that file, which nobody
        finds after it.
        """
        return self._log_inode is not None and inode_of(self._log) != self._log_inode

    def save_lost_log(self) -> None:
        """Copy what is in its write-ahead log into the file, and close it. Raises sqlite3.Error where a
        reader prevents that; then it stays open.
        """
        ((is_busy, _, _),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if is_busy:
            raise sqlite3.OperationalError(
                f"{self._log} was removed or replaced while it was in use, and another process that reads "
                "the file keeps its content from being saved; end that process"
            )
        self.close()

    def rows(self, query: str, values: Values = {}) -> list[tuple[Any, ...]]:  # noqa: B006  # read only
        """See JournalConnection."""
        return self._connection.execute(query, values).fetchall()

    def change(self, statement: str, values: Values = {}) -> int:  # noqa: B006  # read only
        """See JournalConnection."""
        return self._connection.execute(statement, values).rowcount

    def change_each(self, statement: str, rows: Sequence[Values]) -> None:
        """See JournalConnection."""
        self._connection.executemany(statement, rows)

    def close(self) -> None:
        """See JournalConnection."""
        self.is_open = False
        self._connection.close()

    def _roll_back(self) -> None:
        """End the transaction, unless SQLite has done so for its error."""
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        if self._connection.in_transaction:
            self.close()


def inode_of(path: str) -> int | None:
    """The inode of a file; None: there is none."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116  # in every commit; pathlib is slower
    except FileNotFoundError:
        return None


def set_pragmas(connection: Any, _record: object = None) -> None:
    """Use a write-ahead log that is truncated after a large transaction, synchronise every commit to disk,
    and wait instead of failing while a reader holds the file. Whoever uses the connection begins the
    transactions.
    """
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        "busy_timeout=5000",
        "journal_mode=WAL",
        "synchronous=FULL",
        "journal_size_limit=8000000",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
