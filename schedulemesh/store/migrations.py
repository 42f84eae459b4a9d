"""Migrations: bring a stored journal to the present format, one format at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec
from sqlalchemy import Connection, select, update

from schedulemesh.engine.codec import decode_chunk, decode_facts
from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.errors import JournalError
from schedulemesh.store.address import Address
from schedulemesh.store.schema import commits, meta, snapshots


def _no_change(_connection: Connection) -> None:
    """The next format has only new fields, whose defaults say what was true before."""


#: By format: changes the tables and records of a database from that format to the next one.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: _no_change, 2: _no_change}


def migrate(connection: Connection, address: Address, stored: int) -> None:
    """Bring a database of the format ``stored`` to the present one.

    Call in a transaction. Raises JournalError for a format that is newer or unknown, and where the records
    cannot be read afterwards; the transaction is to be rolled back then, which leaves the database as it was.
    """
    if not 1 <= stored <= FORMAT_VERSION:
        raise JournalError(
            f"the journal {address} has format {stored}, this ScheduleMesh reads formats 1 to "
            f"{FORMAT_VERSION}; it was left as it is: use the version that wrote it, or another state_path"
        )
    if stored == FORMAT_VERSION:
        return
    for version in range(stored, FORMAT_VERSION):
        MIGRATIONS[version](connection)
    _check_records(connection, address, stored)
    connection.execute(update(meta).where(meta.c.name == "format").values(value=FORMAT_VERSION))


def _check_records(connection: Connection, address: Address, stored: int) -> None:
    """Raise JournalError where a record cannot be read in the present format."""
    where = "commit", 0
    try:
        for number, facts in connection.execute(select(commits.c.number, commits.c.facts)):
            where = "commit", number
            decode_facts(facts)
        for number, chunk in connection.execute(select(snapshots.c.number, snapshots.c.part)):
            where = "snapshot chunk", number
            decode_chunk(chunk)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise JournalError(
            f"the journal {address} has format {stored} and its {where[0]} {where[1]} cannot be brought to "
            f"format {FORMAT_VERSION} ({error}); it was left as it is"
        ) from error
