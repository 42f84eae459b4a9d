"""The tables that queries are built from are those that the migrations make."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select

from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload, JobPayload
from schedulemesh.engine.codec import decode_facts
from schedulemesh.store.address import Address
from schedulemesh.store.history import schema
from schedulemesh.store.history.tables import VERSION_TABLE, _upgrade, history_engine, migrate

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


@contextmanager
def connected(address):
    """A transaction in a database that has no tables yet."""
    engine = history_engine(address)
    try:
        with engine.connect() as connection, connection.begin():
            yield connection
    finally:
        engine.dispose()


def test_a_migrated_database_has_the_tables_of_the_schema(address):
    with connected(address) as connection:
        _upgrade(connection, None)
        options = {"compare_type": True, "include_object": own}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []


def described(connection):
    """The tables of the history with their columns, keys and indexes, and their version."""
    seen = inspect(connection)
    return {
        "version": connection.exec_driver_sql(f"SELECT * FROM {VERSION_TABLE}").fetchall(),
        **{
            name: (
                texts(seen.get_columns(name)),
                texts([seen.get_pk_constraint(name)]),
                texts(seen.get_indexes(name)),
                texts([seen.get_table_options(name)]),
            )
            for name in seen.get_table_names()
            if name.startswith(PREFIX)
        },
    }


def texts(values):
    """What is said of columns, keys or indexes, as texts that can be compared."""
    return sorted(
        sorted(
            f"{name}: {sorted((k, str(v)) for k, v in value.items()) if isinstance(value, dict) else value}"
            for name, value in one.items()
        )
        for one in values
    )


def test_a_new_database_has_what_the_migrations_make(address):
    with connected(address) as connection:
        migrate(connection)
        created = described(connection)
        assert len(created) > 6
        for table in {*schema.metadata.tables, VERSION_TABLE}:
            connection.exec_driver_sql(f"DROP TABLE {table}")
        _upgrade(connection, None)
        assert created == described(connection)


def test_the_facts_of_an_older_history_have_their_agents_payload(address):
    spec = {"name": "g", "pool_name": "p", "resources": {"cpu": 10000}}
    agents = [
        {**spec, **kind} for kind in ({"gang": {"strategy": "PACK"}}, {"job": {"adopts": "01"}}, {})
    ]
    facts = [{"type": "agent_admitted", "agent": a, "incarnation": 1, "at": 1.0} for a in agents]
    stored = [*(msgspec.json.encode([fact]).decode() for fact in facts), None]
    with connected(address) as connection:
        migrate(connection)
        events = schema.metadata.tables[f"{PREFIX}_events"]
        connection.execute(
            events.insert(),
            [
                {"journal": 1, "number": number, "at": 1.0, "kind": "admitted", "fact": fact}
                for number, fact in enumerate(stored)
            ],
        )
        # Later revisions add these.
        for column in ("node_labels", "alternative", "starts_after", "flavor", "topology"):
            connection.exec_driver_sql(f"ALTER TABLE {PREFIX}_attempts DROP COLUMN {column}")
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '0005'")
        migrate(connection)
        *migrated, last = connection.scalars(select(events.c.fact).order_by(events.c.number))
    assert last is None
    assert [decode_facts(fact.encode())[0].agent.payload for fact in migrated] == [
        GangPayload(strategy="PACK"),
        JobPayload(adopts="01"),
        SINGLE_PROCESS,
    ]


def test_a_difference_would_be_seen(address):
    with connected(address) as connection:
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
