"""The tables that queries are built from are those that the migrations make."""

from __future__ import annotations

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from schedulemesh.store.address import Address
from schedulemesh.store.history import schema
from schedulemesh.store.history.tables import VERSION_TABLE, history_engine, migrate

PREFIX = "schedulemesh_history"


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    if request.param == "sqlite":
        return Address(namespace="", name="mesh", path=tmp_path / "mesh.sqlite")
    return request.getfixturevalue("database")("mesh")


def own(thing, name, kind, _reflected, _other):
    """Whether the migrations of the history are responsible for a table; its indexes are theirs alone."""
    if kind == "table":
        return name.startswith(PREFIX) and name != VERSION_TABLE
    return kind != "index"


def test_a_migrated_database_has_the_tables_of_the_schema(address):
    with history_engine(address).connect() as connection, connection.begin():
        migrate(connection)
        options = {"compare_type": True, "include_object": own}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []


def test_a_difference_would_be_seen(address):
    with history_engine(address).connect() as connection, connection.begin():
        migrate(connection)
        connection.exec_driver_sql(f"ALTER TABLE {PREFIX}_nodes ADD COLUMN more INTEGER")
        context = MigrationContext.configure(connection, opts={"include_object": own})
        assert [found[0] for found in compare_metadata(context, schema.metadata)] == [
            "remove_column"
        ]


def test_a_history_in_a_file_loads_no_other_dialect():
    code = (
        "import sys, schedulemesh.runtime.supervisor, schedulemesh.store.sql\n"
        "loaded = [name for name in sys.modules if name.startswith('sqlalchemy.dialects.postgresql')]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
