"""Notes: small values that are not facts, each replaced as a whole and read when a supervisor starts.

They are not part of the state, so any thread may write one at any time, also during a step.
"""

from __future__ import annotations

import zlib

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from schedulemesh.errors import JournalError
from schedulemesh.store.schema import notes


def read(connection: Connection, journal: int, name: str) -> bytes | None:
    """The note of this name; None: there is none. Raises JournalError if it is damaged."""
    row = connection.execute(select(notes.c.data, notes.c.crc).where(_mine(journal, name))).first()
    if row is None:
        return None
    data = bytes(row.data)
    if zlib.crc32(data) != row.crc:
        raise JournalError(f"the note {name!r} of the journal is not what was written")
    return data


def write(connection: Connection, journal: int, name: str, data: bytes) -> None:
    """Write a note, replacing the one of this name."""
    connection.execute(delete(notes).where(_mine(journal, name)))
    stored = {"journal": journal, "name": name, "crc": zlib.crc32(data), "data": data}
    connection.execute(insert(notes), stored)


def _mine(journal: int, name: str) -> ColumnElement[bool]:
    return (notes.c.journal == journal) & (notes.c.name == name)
