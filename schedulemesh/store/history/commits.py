"""Reads the commits of a journal for the history, on a connection of its own."""

from __future__ import annotations

import zlib
from typing import Protocol

from sqlalchemy import Connection, select

from schedulemesh.errors import JournalError
from schedulemesh.store.address import Address
from schedulemesh.store.recovery import Stored
from schedulemesh.store.schema import commits, journals, snapshots
from schedulemesh.store.server import engine_of, with_snapshots


class Commits(Protocol):
    """The commits of one journal, read by another thread than the one that writes them."""

    def between(self, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        """The numbers and records of the next commits after one number, up to another one, that the journal
        still has.
        """

    def base(self) -> int:
        """The number of the last commit that the snapshot covers."""

    def upto(self, number: int) -> Stored:
        """The snapshot, and the commits after it up to this number."""

    def close(self) -> None:
        """Close the connection."""


class SqlCommits:
    """The commits of a journal in a database; one thread may use it."""

    def __init__(self, address: Address, journal: int) -> None:
        self._engine, self._journal = with_snapshots(engine_of(address), address), journal
        self._connection: Connection | None = None

    def between(self, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        """See Commits."""
        in_range = (commits.c.journal == self._journal) & commits.c.number.between(after + 1, upto)
        query = select(commits.c.number, commits.c.crc, commits.c.facts).where(in_range)
        with self._connected() as connection, connection.begin():
            rows = connection.execute(query.order_by(commits.c.number).limit(limit)).all()
        return [(row.number, _checked(row.number, row.crc, row.facts)) for row in rows]

    def base(self) -> int:
        """See Commits."""
        query = select(journals.c.base).where(journals.c.id == self._journal)
        with self._connected() as connection, connection.begin():
            return int(connection.execute(query).scalar_one())

    def upto(self, number: int) -> Stored:
        """See Commits."""
        in_range = (commits.c.journal == self._journal) & (commits.c.number <= number)
        chunks = select(snapshots.c.part).where(snapshots.c.journal == self._journal)
        with self._connected() as connection, connection.begin():
            base_query = select(journals.c.base).where(journals.c.id == self._journal)
            base = int(connection.execute(base_query).scalar_one())
            parts = connection.execute(chunks.order_by(snapshots.c.number)).scalars().all()
            query = select(commits.c.facts).where(in_range, commits.c.number > base)
            records = connection.execute(query.order_by(commits.c.number)).scalars().all()
        return Stored(base=base, parts=list(map(bytes, parts)), records=list(map(bytes, records)))

    def close(self) -> None:
        """See Commits."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> _Kept:
        if self._connection is None or self._connection.closed:
            self._connection = self._engine.connect()
        return _Kept(self._connection)


class _Kept:
    """A connection that stays open after the block, unless that raises."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Connection:
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._connection.close()


def _checked(number: int, crc: int, record: bytes) -> bytes:
    record = bytes(record)
    if zlib.crc32(record) != crc:
        raise JournalError(f"commit {number} of the journal is not what was written")
    return record
