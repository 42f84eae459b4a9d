"""Opens a journal: creates it atomically, migrates it to the present format, or refuses it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.pool import NullPool

from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.errors import JournalError
from schedulemesh.store.address import Address
from schedulemesh.store.damage import check_file
from schedulemesh.store.disk import probe
from schedulemesh.store.files import check_folder, is_there
from schedulemesh.store.migrations import migrate
from schedulemesh.store.schema import journals, meta, metadata

#: The first half of the advisory locks that journals in PostgreSQL take; the second is the journal's id.
LOCK_SPACE = 0x5343484D

#: PostgreSQL: give up on a server that does not answer within seconds, not hours.
_CONNECT_ARGS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


def engine_of(address: Address) -> Engine:
    """The SQLAlchemy engine of the journal's file or database; nothing is connected yet."""
    if address.url is not None:
        engine = create_engine(address.url, poolclass=NullPool, connect_args=_CONNECT_ARGS)
        event.listen(engine, "connect", _insist_on_disk)
        return engine
    arguments = {"check_same_thread": False}
    engine = create_engine(address.engine_url, poolclass=NullPool, connect_args=arguments)
    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def with_snapshots(engine: Engine, address: Address) -> Engine:
    """The engine for reads: in a database too all statements of a transaction see the same rows, as they do
    in SQLite.
    """
    if address.url is None:
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ")


def prepare(address: Address, *, must_exist: bool) -> None:
    """Check the disk and, if it exists, the file; create the file if it may be new.

    Does nothing for a database. Raises JournalError.
    """
    path = address.path
    if path is None:
        return
    there = is_there(path)
    if not there and must_exist:
        raise lost(address)
    probe(path.parent)
    check_folder(path.parent)
    if there:
        check_file(path)
    else:
        _make(address, path)


def enter(connection: Connection, address: Address, *, must_exist: bool) -> int:
    """The id of the address's journal, brought to this format; made if it may be new.

    Call in a transaction. Raises JournalError for a newer format.
    """
    if address.url is not None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:space, 0)"), {"space": LOCK_SPACE})
        _make_tables(connection)
    migrate(connection, address, _format(connection, address))
    entry = connection.execute(_row(address)).first()
    if entry is not None:
        return int(entry[0])
    if must_exist:
        raise lost(address)
    return _enter_new(connection, address)


def lost(address: Address) -> JournalError:
    """The error for a journal that must exist and does not."""
    return JournalError(
        f"scheduler {address.name!r} ran before, but its journal {address} is gone; it does not start "
        "empty, because agents of it may live. Bring the journal back, or shut the scheduler down"
    )


def _make(address: Address, path: Path) -> None:
    """Create a file with empty tables, atomically."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        unfinished.touch(mode=0o600)
        engine = engine_of(msgspec.structs.replace(address, path=unfinished))
        with engine.begin() as connection:
            _make_tables(connection)
            _enter_new(connection, address)
        engine.dispose()
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return  # another process was faster and has created the same
        except OSError:
            unfinished.rename(path)  # a file system without hard links
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        for suffix in ("", "-wal", "-shm"):
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)


def _make_tables(connection: Connection) -> None:
    metadata.create_all(connection)
    if connection.execute(select(meta.c.value).where(meta.c.name == "format")).first() is None:
        connection.execute(insert(meta).values(name="format", value=FORMAT_VERSION))


def _format(connection: Connection, address: Address) -> int:
    has_table = inspect(connection).has_table(meta.name)
    query = select(meta.c.value).where(meta.c.name == "format")
    row = connection.execute(query).first() if has_table else None
    if row is None:
        raise JournalError(
            f"{address} is a database, but holds no journal; choose another state_path"
        )
    return int(row[0])


def _row(address: Address) -> Any:
    """The query for the journal's id. A file contains one journal, whatever its name."""
    query = select(journals.c.id)
    if address.url is None:
        return query
    return query.where(journals.c.namespace == address.namespace, journals.c.name == address.name)


def _enter_new(connection: Connection, address: Address, **values: int) -> int:
    columns = {"epoch": 0, "last": 0, "base": 0, "parts": 0, **values}
    made = insert(journals).values(namespace=address.namespace, name=address.name, **columns)
    return int(connection.execute(made.returning(journals.c.id)).scalar_one())


def set_pragmas(connection: Any, _record: object) -> None:
    """Use a write-ahead log that is truncated after a large transaction, synchronise every commit to disk,
    and wait instead of failing while a reader holds the file. SQLAlchemy begins the transactions.
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


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _insist_on_disk(connection: Any, _record: object) -> None:
    """Have commits wait for the server's disk, whatever the server's default."""
    connection.execute("SET synchronous_commit TO on")
    connection.commit()
