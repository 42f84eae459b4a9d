"""Both journals keep what they are given, in order, for the one writer of the day."""

from __future__ import annotations

import sqlite3

import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.facts import EpochBegun, PolicyChanged, PoolEnsured
from schedulemesh.engine.state import MeshState
from schedulemesh.errors import JournalError
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal


def ensured(name, cpu=1.0):
    return PoolEnsured(spec=PoolSpec(name=name, resources=parse_resources({"cpu": cpu})))


@pytest.fixture(params=["memory", "sqlite"])
def journal(request, tmp_path):
    found = MemoryJournal() if request.param == "memory" else SqlJournal(tmp_path / "j.sqlite")
    yield found
    found.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "folder" / "j.sqlite"


def test_facts_come_back_in_order(journal):
    journal.begin()
    first, second = ensured("a"), ensured("b")
    changed = PolicyChanged(policy=PreemptionPolicy(), at=1.0, client="me", changes=(), level=None)
    journal.append([first, changed], {})
    journal.append([], {})
    journal.append([second], {})
    assert list(journal.facts()) == [first, changed, second]
    assert list(MeshState.fold(journal.facts()).ledger.accounts) == ["a", "b"]


def test_blobs_are_kept_once_and_dropped(journal):
    journal.begin()
    journal.append([], {"k": b"\x00one", "l": b""})
    journal.append([ensured("a")], {"k": b"\x00one"})
    assert journal.blob("k") == b"\x00one"
    assert journal.blob("l") == b""
    assert journal.blob("unknown") is None
    journal.drop_blobs(["k", "unknown"])
    assert journal.blob("k") is None
    assert journal.blob("l") == b""


def test_epochs_rise(journal):
    assert [journal.begin(), journal.begin()] == [1, 2]


def test_writing_before_a_takeover_is_refused():
    journal = MemoryJournal()
    journal.begin()
    journal._epoch += 1  # as another writer does
    with pytest.raises(JournalError, match="epoch 1 is over; epoch 2 writes now"):
        journal.append([ensured("a")], {})
    assert list(journal.facts()) == []


def test_it_is_all_there_when_opened_again(path):
    journal = SqlJournal(path)
    assert journal.begin() == 1
    journal.append([ensured("a")], {"k": b"v"})
    journal.close()
    again = SqlJournal(path)
    assert list(again.facts()) == [ensured("a")]
    assert again.blob("k") == b"v"
    assert again.begin() == 2
    again.close()


def test_a_former_writer_is_out(path):
    old, new = SqlJournal(path), SqlJournal(path)
    old.begin()
    old.append([ensured("a")], {})
    assert new.begin() == 2
    with pytest.raises(JournalError, match=r"epoch 1 of .* is over"):
        old.append([ensured("b")], {"k": b"v"})
    new.append([EpochBegun(epoch=2, at=1.0)], {})
    assert list(old.facts()) == [ensured("a"), EpochBegun(epoch=2, at=1.0)]
    assert new.blob("k") is None
    old.close()
    new.close()


def test_a_failed_append_keeps_nothing_of_it(path):
    journal = SqlJournal(path)
    journal.begin()
    journal.append([ensured("a")], {})
    with sqlite3.connect(path) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON schedulemesh_blobs "
            "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
    other.close()
    with pytest.raises(JournalError, match=r"cannot append to the journal .*disk full"):
        journal.append([ensured("b")], {"k": b"v"})
    assert list(journal.facts()) == [ensured("a")]
    journal.append([ensured("c")], {})
    assert list(journal.facts()) == [ensured("a"), ensured("c")]
    journal.close()


def test_every_commit_is_on_disk_and_a_reader_does_not_block_it(path):
    journal = SqlJournal(path)
    journal.begin()
    pragmas = {
        name: journal._connection.exec_driver_sql(f"PRAGMA {name}").scalar()
        for name in ("journal_mode", "synchronous")
    }
    journal._connection.rollback()
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM schedulemesh_records").fetchone()
    journal.append([ensured("a")], {})
    reader.close()
    journal.close()


def test_another_format_is_refused_with_a_word(path):
    journal = SqlJournal(path)
    journal.close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE schedulemesh_meta SET value = 99 WHERE name = 'format'")
    other.close()
    with pytest.raises(JournalError, match="has format 99, this ScheduleMesh reads format"):
        SqlJournal(path)


def test_a_file_that_is_no_journal_is_left_alone(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"this is a shopping list" * 100)
    with pytest.raises(JournalError, match="cannot be opened"):
        SqlJournal(path)
    assert path.read_bytes() == b"this is a shopping list" * 100


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be opened"):
        SqlJournal(tmp_path / "file" / "j.sqlite")


def test_a_record_that_cannot_be_read_is_told(path):
    journal = SqlJournal(path)
    journal.begin()
    journal.append([ensured("a")], {})
    with sqlite3.connect(path) as other:
        other.execute("UPDATE schedulemesh_records SET facts = x'5b7b7d5d'")
    other.close()
    with pytest.raises(JournalError, match="cannot be read"):
        list(journal.facts())
    journal.close()


def test_destroying_leaves_no_file(path):
    journal = SqlJournal(path)
    journal.begin()
    journal.append([ensured("a")], {})
    journal.destroy()
    assert list(path.parent.iterdir()) == []


def test_destroying_memory_forgets_it():
    journal = MemoryJournal()
    journal.begin()
    journal.append([ensured("a")], {"k": b"v"})
    journal.destroy()
    assert list(journal.facts()) == []
    assert journal.blob("k") is None
