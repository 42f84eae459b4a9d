"""Opens the database of the history, and brings its tables to the present version."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_engine,
    event,
    inspect,
    select,
    text,
)
from sqlalchemy.pool import NullPool

from schedulemesh.errors import JournalError
from schedulemesh.store.address import Address
from schedulemesh.store.connections import set_pragmas
from schedulemesh.store.files import beside, create_if_absent
from schedulemesh.store.history.schema import indexes, metadata
from schedulemesh.store.server import engine_of

#: PostgreSQL's advisory lock while tables are created or changed. Locks of one number are others than those
#: of two numbers, which journals take.
_LOCK = 0x5343484D48495354
VERSION_TABLE = "schedulemesh_history_version"
#: The newest version of the tables: the revision of the newest script in ``migrations/versions``.
HEAD = "0010"
_SCRIPTS = Path(__file__).with_name("migrations")
#: As Alembic makes it. It has one row.
_versions = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
#: The suffix of the history's file beside a journal's file, and those of the files beside that one.
SUFFIX = ".history"
FILES = (SUFFIX, f"{SUFFIX}-wal", f"{SUFFIX}-shm")


def history_path(address: Address) -> Path | None:
    """The file of the history of a journal in a file; None: the journal is in a database, and so is it."""
    return None if address.path is None else beside(address.path, SUFFIX)


def history_engine(address: Address) -> Engine:
    """The SQLAlchemy engine of the history of a journal; a file is created where there is none."""
    path = history_path(address)
    if path is None:
        return engine_of(address)
    create_if_absent(path)
    url = URL.create("sqlite", database=str(path))
    engine = create_engine(url, poolclass=NullPool, connect_args={"check_same_thread": False})
    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def migrate(connection: Connection) -> None:
    """Bring the tables to the present version, or create them. Call in a transaction.

    Raises JournalError where a newer ScheduleMesh wrote them.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if not inspect(connection).has_table(_versions.name):
        metadata.create_all(connection, checkfirst=False)
        for statement in indexes(connection.dialect.name):
            connection.exec_driver_sql(statement)
        _versions.create(connection)
        connection.execute(_versions.insert().values(version_num=HEAD))
    elif (version := connection.execute(select(_versions.c.version_num)).scalar()) != HEAD:
        _upgrade(connection, version)


def _upgrade(connection: Connection, version: str | None) -> None:
    """Bring tables of this version to the present one; None: there are none. Raises JournalError."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported only where there is something to do: it takes longer than to create all tables.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in revisions:
        raise JournalError(
            f"the history has version {version}, this ScheduleMesh knows versions up to {HEAD}; it was left "
            "as it is: use the version that wrote it"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
