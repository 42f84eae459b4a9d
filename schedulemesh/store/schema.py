"""The tables of a journal in a database."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table

metadata = MetaData()

#: One row per commit: its facts as a JSON list.
records = Table(
    "schedulemesh_records",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("facts", LargeBinary, nullable=False),
)

#: Bytes under the hash of what they are.
blobs = Table(
    "schedulemesh_blobs",
    metadata,
    Column("key", String(80), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

#: ``format``: the version of the facts; ``epoch``: the writer of now.
meta = Table(
    "schedulemesh_meta",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
