"""The tables of a journal. One database may hold the journals of many schedulers.

A journal is its snapshot and the commits after it, without a gap up to ``journals.last``. Each row has the
CRC-32 of its data, so that damage is detected.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData()

_number = BigInteger().with_variant(Integer, "sqlite")

#: ``format``: the version of all tables and facts of this database.
meta = Table(
    "schedulemesh_meta",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

#: One row per scheduler. Every writer updates it first, so that writers wait for each other.
journals = Table(
    "schedulemesh_journals",
    metadata,
    Column("id", _number, primary_key=True),
    Column("namespace", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    #: The epoch that may write; a higher one fences all earlier ones.
    Column("epoch", BigInteger, nullable=False),
    #: The number of the last commit.
    Column("last", BigInteger, nullable=False),
    #: The number of the last commit that the snapshot covers, and the number of its chunks.
    Column("base", BigInteger, nullable=False),
    Column("parts", BigInteger, nullable=False),
    UniqueConstraint("namespace", "name"),
)

#: One row per commit: its facts as a JSON list.
commits = Table(
    "schedulemesh_commits",
    metadata,
    Column("journal", BigInteger, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("crc", BigInteger, nullable=False),
    Column("facts", LargeBinary, nullable=False),
)

#: The chunks of the snapshot: compressed JSON.
snapshots = Table(
    "schedulemesh_snapshots",
    metadata,
    Column("journal", BigInteger, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("crc", BigInteger, nullable=False),
    Column("part", LargeBinary, nullable=False),
)

#: Bytes by their SHA-256.
blobs = Table(
    "schedulemesh_blobs",
    metadata,
    Column("journal", BigInteger, primary_key=True),
    Column("key", String(80), primary_key=True),
    #: The number of a commit that they were given with or before; after the snapshot, if one of these is.
    Column("number", BigInteger, nullable=False),
    Column("crc", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

#: Small values that are not facts; see notes.py.
notes = Table(
    "schedulemesh_notes",
    metadata,
    Column("journal", BigInteger, primary_key=True),
    Column("name", String(80), primary_key=True),
    Column("crc", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
