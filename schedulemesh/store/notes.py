"""Notes: small values that are not facts, each replaced as a whole and read when a supervisor starts.

They are not part of the state, so any thread may write one at any time, also during a step.
"""

from __future__ import annotations

import zlib

from schedulemesh.errors import JournalError
from schedulemesh.store import statements
from schedulemesh.store.connections import JournalConnection


def read(connection: JournalConnection, journal: int, name: str) -> bytes | None:
    """The note of this name; None: there is none. Raises JournalError if it is damaged."""
    rows = connection.rows(statements.NOTE, {"journal": journal, "name": name})
    if not rows:
        return None
    data, crc = bytes(rows[0][0]), rows[0][1]
    if zlib.crc32(data) != crc:
        raise JournalError(f"the note {name!r} of the journal is not what was written")
    return data


def write(connection: JournalConnection, journal: int, name: str, data: bytes) -> None:
    """Write a note, replacing the one of this name."""
    one = {"journal": journal, "name": name}
    connection.change(statements.DROP_NOTE, one)
    connection.change(statements.INSERT_NOTE, {**one, "crc": zlib.crc32(data), "data": data})
