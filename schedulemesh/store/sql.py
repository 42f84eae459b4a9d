"""A journal in SQLite, through SQLAlchemy Core: WAL, and on disk before ``append`` returns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, create_engine, delete, event, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from schedulemesh.engine.codec import decode_facts, encode_facts
from schedulemesh.engine.facts import FORMAT_VERSION, AnyFact
from schedulemesh.errors import JournalError
from schedulemesh.store.schema import blobs, meta, metadata, records


class SqlJournal:
    """One journal in one SQLite file; threads take turns.

    Raises JournalError where the file cannot be opened, is of another format, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._epoch = 0
        self._turn = threading.RLock()
        with _told(f"the journal {path} cannot be opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._engine = create_engine(
                f"sqlite:///{path}",
                poolclass=StaticPool,
                connect_args={"check_same_thread": False},
            )
            event.listen(self._engine, "connect", _set_pragmas)
            metadata.create_all(self._engine)
            self._connection = self._engine.connect()
            self._check_format()

    def begin(self) -> int:
        """See Journal."""
        with self._transaction("take over") as connection:
            self._epoch = self._value(connection, "epoch", 0) + 1
            connection.execute(delete(meta).where(meta.c.name == "epoch"))
            connection.execute(insert(meta).values(name="epoch", value=self._epoch))
        return self._epoch

    def append(self, facts: Sequence[AnyFact], blobs_: Mapping[str, bytes]) -> None:
        """See Journal."""
        with self._transaction("append to") as connection:
            # The update takes the write lock first, so that no other writer can come between.
            mine = connection.execute(
                update(meta)
                .where(meta.c.name == "epoch", meta.c.value == self._epoch)
                .values(value=self._epoch)
            )
            if mine.rowcount != 1:
                raise JournalError(
                    f"epoch {self._epoch} of {self.path} is over; another writes now"
                )
            if facts:
                connection.execute(
                    insert(records), {"epoch": self._epoch, "facts": encode_facts(facts)}
                )
            for key, data in blobs_.items():
                if not self._has_blob(connection, key):
                    connection.execute(insert(blobs), {"key": key, "data": data})

    def facts(self) -> Iterator[AnyFact]:
        """See Journal."""
        with self._turn, _told(f"the journal {self.path} cannot be read"):
            rows = self._connection.execute(select(records.c.facts).order_by(records.c.seq))
            for (stored,) in rows:
                yield from decode_facts(stored)
            self._connection.rollback()

    def blob(self, key: str) -> bytes | None:
        """See Journal."""
        with self._turn, _told(f"the journal {self.path} cannot be read"):
            row = self._connection.execute(select(blobs.c.data).where(blobs.c.key == key)).first()
            self._connection.rollback()
            return None if row is None else bytes(row[0])

    def drop_blobs(self, keys: Iterable[str]) -> None:
        """See Journal."""
        with self._transaction("forget blobs in") as connection:
            for key in keys:
                connection.execute(delete(blobs).where(blobs.c.key == key))

    def close(self) -> None:
        """See Journal."""
        self._connection.close()
        self._engine.dispose()

    def destroy(self) -> None:
        """See Journal."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _check_format(self) -> None:
        with self._connection.begin():
            found = self._value(self._connection, "format", None)
            if found is None:
                self._connection.execute(insert(meta).values(name="format", value=FORMAT_VERSION))
            elif found != FORMAT_VERSION:
                raise JournalError(
                    f"the journal {self.path} has format {found}, this ScheduleMesh reads format "
                    f"{FORMAT_VERSION}; use the version that wrote it, or another state_path"
                )

    @contextlib.contextmanager
    def _transaction(self, what: str) -> Iterator[Connection]:
        told = _told(f"cannot {what} the journal {self.path}")
        with self._turn, told, self._connection.begin():
            yield self._connection

    def _value(self, connection: Connection, name: str, default: Any) -> Any:
        row = connection.execute(select(meta.c.value).where(meta.c.name == name)).first()
        return default if row is None else row[0]

    def _has_blob(self, connection: Connection, key: str) -> bool:
        return connection.execute(select(blobs.c.key).where(blobs.c.key == key)).first() is not None


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say in one sentence what could not be done and why."""
    try:
        yield
    except (SQLAlchemyError, OSError, msgspec.MsgspecError) as error:
        reason = getattr(error, "orig", None) or error
        raise JournalError(f"{what}: {reason}") from error


def _set_pragmas(connection: Any, _record: object) -> None:
    """Write-ahead log, every commit on disk, and a wait instead of an error where a reader holds the file."""
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
