"""A journal of an older format is brought to the present one, whole or not at all."""

from __future__ import annotations

import json
import lzma
import sqlite3
import zlib

import msgspec
import pytest
from sqlalchemy import select, update

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.engine.state.invariants import check
from schedulemesh.errors import JournalError
from schedulemesh.store import migrations
from schedulemesh.store.migrations import in_format_5
from schedulemesh.store.schema import commits
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import ensured, epochs, fact, pools, write, written
from tests.store.golden import FOLDER, stored_journals


def renamed(old, new):
    """A migration after which a kind of fact has another name."""

    def change(connection):
        rows = connection.execute(select(commits.c.number, commits.c.facts)).all()
        for number, facts in rows:
            record = facts.replace(old, new)
            changed = update(commits).where(commits.c.number == number)
            connection.execute(changed.values(facts=record, crc=zlib.crc32(record)))

    return change


@pytest.fixture
def path(tmp_path):
    """A journal with a snapshot, two commits whose facts have their name of format 1, and a blob."""
    path = tmp_path / "mesh.sqlite"
    journal = SqlJournal(path)
    write(journal, ensured("train"))
    journal.compact(written(journal.load().fold()), journal.last, frozenset())
    write(journal, fact(2), code=b"class bytes")
    write(journal, fact(3))
    journal.close()
    with sqlite3.connect(path) as found:
        found.create_function("crc32", 1, zlib.crc32)
        found.execute(
            "UPDATE schedulemesh_commits SET facts ="
            " CAST(replace(facts, 'epoch_begun', 'life_begun') AS BLOB)"
        )
        found.execute("UPDATE schedulemesh_commits SET crc = crc32(facts)")
        found.execute("UPDATE schedulemesh_meta SET value = 1 WHERE name = 'format'")
    found.close()
    return path


@pytest.fixture
def two_formats_later(monkeypatch):
    """The present format is two formats ahead, in each of which that fact got another name."""
    monkeypatch.setattr(migrations, "FORMAT_VERSION", 3)
    monkeypatch.setitem(migrations.MIGRATIONS, 1, renamed(b"life_begun", b"supervisor_begun"))
    monkeypatch.setitem(migrations.MIGRATIONS, 2, renamed(b"supervisor_begun", b"epoch_begun"))


def format_of(path):
    with sqlite3.connect(path) as found:
        wanted = "SELECT value FROM schedulemesh_meta WHERE name = 'format'"
        (version,) = found.execute(wanted).fetchone()
    found.close()
    return version


def test_each_migration_runs_once_and_everything_is_read(path, two_formats_later):
    journal = SqlJournal(path, must_exist=True)
    assert format_of(path) == 3
    assert pools(journal) == ["train"]
    assert epochs(journal) == [2, 3]
    assert list(journal.blob_sizes().values()) == [len(b"class bytes")]
    journal.begin()
    write(journal, fact(4))
    journal.close()
    again = SqlJournal(path)
    assert epochs(again) == [2, 3, 4]
    again.close()


def test_a_migration_that_leaves_an_unreadable_record_changes_nothing(
    path, two_formats_later, monkeypatch
):
    monkeypatch.setitem(migrations.MIGRATIONS, 2, renamed(b"supervisor_begun", b"unknown"))
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"format 1 and its commit 2 cannot .* left as it is"):
        SqlJournal(path)
    assert format_of(path) == 1
    assert path.read_bytes() == before


def test_the_present_format_needs_no_migration(tmp_path):
    path = tmp_path / "mesh.sqlite"
    SqlJournal(path).close()
    assert format_of(path) == migrations.FORMAT_VERSION
    SqlJournal(path, must_exist=True).close()


def test_every_older_format_has_a_migration():
    assert set(migrations.MIGRATIONS) == set(range(1, migrations.FORMAT_VERSION))


#: What format 4 says of the actors of each agent in the journals ``formats/3-actors-*``, of scheduler "mesh"
#: in namespace "space".
ACTORS = {
    "plain": [],
    "named": [("space", "mine")],
    "gang": [("space", "schedulemesh:mesh:gang-0#3"), ("space", "schedulemesh:mesh:gang-1#3")],
    "named-gang": [("other", "ours-0"), ("other", "ours-1")],
}


@pytest.fixture(params=["facts", "snapshot"])
def format_3(request, tmp_path):
    """A journal of format 3 with agents that are started and that run, as facts or as a snapshot."""
    path = tmp_path / "mesh.sqlite"
    path.touch(mode=0o600)
    stored = FOLDER / f"3-actors-{request.param}.sqlite.xz"
    path.write_bytes(lzma.decompress(stored.read_bytes()))
    assert format_of(path) == 3
    return path


def test_format_4_says_which_actors_run_an_agent(format_3):
    journal = SqlJournal(format_3, must_exist=True)
    state = journal.load().fold()
    journal.close()
    check(state)
    found = {
        name: [actor.address for actor in agent.actors] for name, agent in state.agents.items()
    }
    assert found == ACTORS


def test_a_damaged_record_is_not_made_whole_by_a_migration(format_3):
    with sqlite3.connect(format_3) as found:
        found.execute("UPDATE schedulemesh_commits SET crc = crc + 1")
        found.execute("UPDATE schedulemesh_snapshots SET crc = crc + 1")
    found.close()
    journal = SqlJournal(format_3, must_exist=True)
    with pytest.raises(JournalError, match="damaged"):
        journal.load()
    journal.close()


FORMAT_4 = {journal.name: journal for journal in stored_journals(4)}
KINDS = ("gang", "job", "lease")


@pytest.fixture(params=FORMAT_4)
def format_4(request, tmp_path):
    """A journal of format 4."""
    path = tmp_path / "mesh.sqlite"
    path.touch(mode=0o600)
    path.write_bytes(FORMAT_4[request.param].file)
    return path


def stored_values(path):
    """Everything that the records and snapshots of a journal hold, decoded."""
    with sqlite3.connect(path) as file:
        records = file.execute("SELECT facts FROM schedulemesh_commits ORDER BY number").fetchall()
        chunks = file.execute("SELECT part FROM schedulemesh_snapshots ORDER BY number").fetchall()
    file.close()
    return [json.loads(record) for (record,) in records] + [
        json.loads(zlib.decompress(chunk)) for (chunk,) in chunks
    ]


def specs_in(value):
    """The specifications of agents within a decoded value, in order."""
    if isinstance(value, dict):
        if {"name", "pool_name", "resources"} <= value.keys():
            yield value
        for inner in value.values():
            yield from specs_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from specs_in(inner)


def payload_of(spec):
    """What format 4 says of an agent, as format 5 does; None: it is a single process."""
    payloads = [{"type": kind, **spec[kind]} for kind in KINDS if kind in spec]
    assert len(payloads) < 2
    return payloads[0] if payloads else None


def test_format_5_says_in_one_field_what_an_agent_is(format_4):
    specs = list(specs_in(stored_values(format_4)))
    before = [(spec["name"], payload_of(spec)) for spec in specs]
    SqlJournal(format_4, must_exist=True).close()
    migrated = list(specs_in(stored_values(format_4)))
    assert [(spec["name"], spec.get("payload")) for spec in migrated] == before
    assert not [spec for spec in migrated if spec.keys() & set(KINDS)]


def alternatives_of(spec):
    """What format 5 says of the nodes that will do instead; None: there are none."""
    if "fallback_labels" not in spec:
        return spec.get("alternatives")
    choices = (spec.get("node_labels", []), *spec["fallback_labels"])
    return [{"node_labels": labels} for labels in choices]


def test_labels_that_will_do_instead_became_alternatives(format_4):
    before = list(map(alternatives_of, specs_in(stored_values(format_4))))
    SqlJournal(format_4, must_exist=True).close()
    migrated = list(specs_in(stored_values(format_4)))
    assert [spec.get("alternatives") for spec in migrated] == before
    assert not [spec for spec in migrated if "fallback_labels" in spec]


def test_of_more_than_two_levels_of_attained_service_the_first_one_is_kept():
    policy = {"order": "multi_level_las", "las_levels_gpu_hours": [2.0, 8.0], "estimates": True}
    (changed,) = msgspec.json.decode(in_format_5(msgspec.json.encode([policy])))
    kept = msgspec.convert(changed, QueuePolicy)
    assert kept == QueuePolicy(order="two_level_las", las_threshold_gpu_hours=2.0, estimates=True)


def test_the_journals_of_format_4_have_what_is_changed(tmp_path):
    fields = set()
    for name, journal in FORMAT_4.items():
        path = tmp_path / name
        path.write_bytes(journal.file)
        fields |= {field for spec in specs_in(stored_values(path)) for field in spec}
    assert {*KINDS, "fallback_labels"} <= fields


@pytest.mark.parametrize(
    "value",
    [
        {"gang": {"name": "gang"}, "job": {"pool_name": "p"}},
        {"pool_name": {"resources": {}}, "resources": {}, "gang": {}},
        {"pool_name": "p", "resources": {}, "last_metrics": {"job": {}}},
        {"pool_name": "p", "resources": {}, "gang": 'x"gang":{'},
    ],
)
def test_what_is_no_payload_stays_as_it_is(value):
    record = json.dumps([value], separators=(",", ":")).encode()
    assert json.loads(migrations.in_format_5(record)) == [value]
