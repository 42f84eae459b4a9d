"""Opens a journal: creates it atomically, migrates it to the present format, or refuses it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.errors import JournalError
from schedulemesh.store import statements
from schedulemesh.store.address import Address
from schedulemesh.store.connections import FileConnection, JournalConnection
from schedulemesh.store.damage import check_file
from schedulemesh.store.disk import probe
from schedulemesh.store.files import check_folder, is_there

#: The first half of the advisory locks that journals in PostgreSQL take; the second is the journal's id.
LOCK_SPACE = 0x5343484D

#: The tables of ``store.schema`` in a file.
_TABLES = (
    """CREATE TABLE schedulemesh_meta (
    name VARCHAR(40) NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (name))""",
    """CREATE TABLE schedulemesh_journals (
    id INTEGER NOT NULL, namespace VARCHAR(255) NOT NULL, name VARCHAR(255) NOT NULL,
    epoch BIGINT NOT NULL, last BIGINT NOT NULL, base BIGINT NOT NULL, parts BIGINT NOT NULL,
    PRIMARY KEY (id), UNIQUE (namespace, name))""",
    """CREATE TABLE schedulemesh_commits (
    journal BIGINT NOT NULL, number BIGINT NOT NULL, crc BIGINT NOT NULL, facts BLOB NOT NULL,
    PRIMARY KEY (journal, number))""",
    """CREATE TABLE schedulemesh_snapshots (
    journal BIGINT NOT NULL, number BIGINT NOT NULL, crc BIGINT NOT NULL, part BLOB NOT NULL,
    PRIMARY KEY (journal, number))""",
    """CREATE TABLE schedulemesh_blobs (
    journal BIGINT NOT NULL, "key" VARCHAR(80) NOT NULL, number BIGINT NOT NULL, crc BIGINT NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (journal, "key"))""",
    """CREATE TABLE schedulemesh_notes (
    journal BIGINT NOT NULL, name VARCHAR(80) NOT NULL, crc BIGINT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (journal, name))""",
)
_HAS_TABLES = "SELECT 1 FROM sqlite_master WHERE name = 'schedulemesh_meta'"
_FORMAT = "SELECT value FROM schedulemesh_meta WHERE name = 'format'"
_NOTE_FORMAT = "INSERT INTO schedulemesh_meta (name, value) VALUES ('format', :format)"
#: The id of the journal in a file, which contains one, whatever its name; and in a database.
_ID_IN_FILE = "SELECT id FROM schedulemesh_journals"
_ID_IN_DATABASE = (
    "SELECT id FROM schedulemesh_journals WHERE namespace = :namespace AND name = :name"
)
_ENTER = (
    "INSERT INTO schedulemesh_journals (namespace, name, epoch, last, base, parts) "
    "VALUES (:namespace, :name, 0, 0, 0, 0) RETURNING id"
)


def connect(address: Address) -> JournalConnection:
    """A connection to the journal's file or database."""
    if address.path is not None:
        return FileConnection(address.path)
    from schedulemesh.store.server import ServerConnection  # noqa: PLC0415  # only for a database

    return ServerConnection(address)


def prepare(address: Address, *, must_exist: bool) -> None:
    """Check the disk and, if it exists, the file, which is brought to the present format; create the file if
    it may be new.

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
        _bring_up_to_date(address, path)
    else:
        _make(address, path)


def enter(connection: JournalConnection, address: Address, *, must_exist: bool) -> int:
    """The id of the address's journal; made if it may be new. A database is brought to the present format
    before.

    Call in a transaction. Raises JournalError for a newer format.
    """
    if address.url is not None:
        from schedulemesh.store.server_tables import bring_up_to_date  # noqa: PLC0415  # as above

        connection.rows(statements.LOCK_TABLES, {"space": LOCK_SPACE})
        bring_up_to_date(connection, address)
    rows = connection.rows(*_identity(address))
    if rows:
        return int(rows[0][0])
    if must_exist:
        raise lost(address)
    return _enter_new(connection, address)


def lost(address: Address) -> JournalError:
    """The error for a journal that must exist and does not."""
    return JournalError(
        f"scheduler {address.name!r} ran before, but its journal {address} is gone; it does not start "
        "empty, because agents of it may live. Bring the journal back, or shut the scheduler down"
    )


def _bring_up_to_date(address: Address, path: Path) -> None:
    """Migrate a file of an older format. Raises JournalError where it holds no journal, or a newer one."""
    with contextlib.closing(FileConnection(path)) as connection, connection.transaction():
        rows = connection.rows(_FORMAT) if connection.rows(_HAS_TABLES) else []
    if not rows:
        raise JournalError(
            f"{address} is a database, but holds no journal; choose another state_path"
        )
    if rows[0][0] != FORMAT_VERSION:
        # Imported only where there is something to migrate, because it needs SQLAlchemy.
        from schedulemesh.store.server_tables import migrate_file  # noqa: PLC0415

        migrate_file(address)


def _make(address: Address, path: Path) -> None:
    """Create a file with empty tables, atomically."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        unfinished.touch(mode=0o600)
        with contextlib.closing(FileConnection(unfinished)) as connection, connection.transaction():
            for table in _TABLES:
                connection.change(table)
            connection.change(_NOTE_FORMAT, {"format": FORMAT_VERSION})
            _enter_new(connection, address)
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


def _identity(address: Address) -> tuple[str, dict[str, str]]:
    """The query for the journal's id, and its values."""
    if address.url is None:
        return _ID_IN_FILE, {}
    return _ID_IN_DATABASE, {"namespace": address.namespace, "name": address.name}


def _enter_new(connection: JournalConnection, address: Address) -> int:
    names = {"namespace": address.namespace, "name": address.name}
    return int(connection.rows(_ENTER, names)[0][0])
