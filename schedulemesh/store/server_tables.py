"""Brings the tables of a journal to the present format through SQLAlchemy: those of a database whenever it is
opened, those of a file that an older ScheduleMesh wrote.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection, insert, select

from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.store.address import Address
from schedulemesh.store.connections import JournalConnection
from schedulemesh.store.migrations import migrate
from schedulemesh.store.schema import meta, metadata
from schedulemesh.store.server import ServerConnection, engine_of

_FORMAT = select(meta.c.value).where(meta.c.name == "format")


def bring_up_to_date(server: JournalConnection, address: Address) -> None:
    """Make the tables of a database, or migrate them. Call in a transaction. Raises JournalError."""
    connection = cast("ServerConnection", server).connection
    metadata.create_all(connection)
    if connection.execute(_FORMAT).first() is None:
        connection.execute(insert(meta).values(name="format", value=FORMAT_VERSION))
    _migrate(connection, address)


def migrate_file(address: Address) -> None:
    """Migrate the file of a journal. Raises JournalError, and leaves it as it is then."""
    engine = engine_of(address)
    with engine.begin() as connection:
        _migrate(connection, address)
    engine.dispose()


def _migrate(connection: Connection, address: Address) -> None:
    migrate(connection, address, int(connection.execute(_FORMAT).scalar_one()))
