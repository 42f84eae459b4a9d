"""The tables of a journal. One database may hold the journals of many schedulers.

A journal is its snapshot, then the commits after it, without a gap up to ``journals.last``. Each stored
piece carries its CRC-32, so that a damaged one is never taken for the truth.
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

#: One row per scheduler; whoever writes changes it first, so writers come one after the other.
journals = Table(
    "schedulemesh_journals",
    metadata,
    Column("id", _number, primary_key=True),
    Column("namespace", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    #: The life that may write; a higher one fences all before it.
    Column("epoch", BigInteger, nullable=False),
    #: The number of the last commit.
    Column("last", BigInteger, nullable=False),
    #: The number of the last commit that the snapshot tells, and the parts that it has.
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

#: The snapshot: parts of JSON, deflated.
snapshots = Table(
    "schedulemesh_snapshots",
    metadata,
    Column("journal", BigInteger, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("crc", BigInteger, nullable=False),
    Column("part", LargeBinary, nullable=False),
)

#: Bytes under the hash of what they are.
blobs = Table(
    "schedulemesh_blobs",
    metadata,
    Column("journal", BigInteger, primary_key=True),
    Column("key", String(80), primary_key=True),
    #: A commit before which, or with which, they were given; after the snapshot, if any of those was.
    Column("number", BigInteger, nullable=False),
    Column("crc", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

#: Small values beside the facts; see notes.py.
notes = Table(
    "schedulemesh_notes",
    metadata,
    Column("journal", BigInteger, primary_key=True),
    Column("name", String(80), primary_key=True),
    Column("crc", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
