"""Journals keep what they are given, in order, for the one writer of the day."""

from __future__ import annotations

import sqlite3
from collections import Counter
from unittest.mock import Mock

import pytest
from sqlalchemy import create_engine, inspect

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.engine.messages.facts import PolicyChanged
from schedulemesh.errors import JournalError, JournalTakenOverError
from schedulemesh.protocol.agents import key_of
from schedulemesh.store.high_mark import HighMark
from schedulemesh.store.journal import InDoubtError, MemoryJournal
from schedulemesh.store.schema import metadata
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import ensured, epochs, fact, facts, pools, write, written


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def journal(request, tmp_path):
    if request.param == "memory":
        found = MemoryJournal()
    elif request.param == "sqlite":
        found = SqlJournal(tmp_path / "j.sqlite")
    else:
        found = SqlJournal(request.getfixturevalue("database")("a journal"))
    yield found
    found.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "folder" / "j.sqlite"


def test_facts_come_back_in_order(journal):
    journal.begin()
    first, second = ensured("a"), ensured("b")
    changed = PolicyChanged(policy=PreemptionPolicy(), at=1.0, client="me", changes=(), level=None)
    write(journal, first, changed)
    write(journal)
    write(journal, second)
    assert facts(journal) == [first, changed, second]
    assert pools(journal) == ["a", "b"]
    assert journal.last == 2


def test_blobs_are_kept_once(journal):
    journal.begin()
    write(journal, k=b"\x00one", l=b"")
    write(journal, ensured("a"), k=b"\x00one")
    assert journal.blob(key_of(b"\x00one")) == b"\x00one"
    assert journal.blob(key_of(b"")) == b""
    assert journal.blob("unknown") is None
    assert journal.blob_sizes() == {key_of(b"\x00one"): 4, key_of(b""): 0}


def test_a_note_is_replaced_as_a_whole(journal):
    assert journal.note("n") is None
    journal.put_note("n", b"before any life")
    journal.begin()
    journal.put_note("n", b"\x00new")
    journal.put_note("other", b"")
    assert journal.note("n") == b"\x00new"
    assert journal.note("other") == b""
    write(journal, ensured("a"))
    assert pools(journal) == ["a"]


def test_a_changed_note_is_detected(path):
    journal = SqlJournal(path)
    journal.put_note("n", b"v")
    with journal._transaction("be changed") as connection:
        connection.change("UPDATE schedulemesh_notes SET data = x'00'")
    with pytest.raises(JournalError, match=r"the note 'n' .* is not what was written"):
        journal.note("n")
    journal.close()


def test_a_snapshot_stands_for_the_commits_before_it(journal):
    journal.begin()
    for name in ("a", "b", "c"):
        write(journal, ensured(name))
    before = journal.load()
    del before.records[2:]
    journal.compact(written(before.fold(), 1), 2, frozenset())
    stored = journal.load()
    assert (stored.base, len(stored.records), len(stored.parts)) == (2, 1, 3)
    assert pools(journal) == ["a", "b", "c"]
    write(journal, ensured("d"))
    journal.compact(written(journal.load().fold()), 4, frozenset())
    assert journal.load().records == []
    assert pools(journal) == ["a", "b", "c", "d"]
    assert journal.begin(take_over=True) == 2
    write(journal, ensured("e"))
    assert pools(journal) == ["a", "b", "c", "d", "e"]


def test_blobs_that_nothing_refers_to_go_at_the_second_snapshot(journal):
    journal.begin()
    write(journal, ensured("a"), old=b"1", kept=b"2")
    journal.compact(written(journal.load().fold()), 1, {key_of(b"2")})
    assert set(journal.blob_sizes()) == {key_of(b"1"), key_of(b"2")}
    write(journal, ensured("b"), young=b"3")
    journal.compact(written(journal.load().fold()), 2, {key_of(b"2")})
    assert set(journal.blob_sizes()) == {key_of(b"2"), key_of(b"3")}


def test_storing_a_blob_again_renews_its_age(journal):
    journal.begin()
    write(journal, ensured("a"), k=b"1")
    journal.compact(written(journal.load().fold()), 1, frozenset())
    write(journal, ensured("b"), k=b"1")
    journal.compact(written(journal.load().fold()), 2, frozenset())
    assert journal.blob(key_of(b"1")) == b"1"


def test_a_blob_that_is_stored_is_looked_up_again_after_a_snapshot_and_a_failure_only(path):
    journal = SqlJournal(path)
    journal.begin()
    journal._put_blob = looked_up = Mock(wraps=journal._put_blob)
    for name in ("a", "b", "c"):
        write(journal, ensured(name), k=b"1")
    assert looked_up.call_count == 1
    journal.compact(written(journal.load().fold()), 3, frozenset())
    for name in ("d", "e"):
        write(journal, ensured(name), k=b"1")
    assert looked_up.call_count == 2
    looked_up.side_effect = OSError
    with pytest.raises(JournalError):
        write(journal, ensured("f"), k=b"1", l=b"2")
    looked_up.side_effect = None
    write(journal, ensured("f"), k=b"1", l=b"2")
    assert journal.blob(key_of(b"1")) == b"1"
    assert journal.blob(key_of(b"2")) == b"2"
    journal.close()


def test_nothing_new_is_a_test_of_the_disk_though_its_blob_is_stored(path):
    journal = SqlJournal(path)
    journal.begin()
    journal._write_something = tested = Mock(wraps=journal._write_something)
    write(journal, k=b"1")
    write(journal, k=b"1")
    assert tested.call_count == 1
    journal.close()


def test_epochs_rise(journal):
    assert [journal.begin(), journal.begin(), journal.begin(take_over=True)] == [1, 2, 3]


def test_writing_before_a_takeover_is_refused():
    journal = MemoryJournal()
    journal.begin()
    journal._epoch += 1  # as another writer does
    with pytest.raises(JournalTakenOverError, match="epoch 1 is over; epoch 2 writes now"):
        write(journal, ensured("a"))
    with pytest.raises(JournalTakenOverError):
        journal.compact([b"of the past"], 0, frozenset())
    assert (facts(journal), journal.stored.parts) == ([], [])


def test_it_is_all_there_when_opened_again(path):
    journal = SqlJournal(path)
    assert journal.begin() == 1
    write(journal, ensured("a"), k=b"v")
    journal.close()
    again = SqlJournal(path, must_exist=True)
    assert facts(again) == [ensured("a")]
    assert again.blob(key_of(b"v")) == b"v"
    assert again.begin() == 2
    again.close()


def test_a_previous_writer_is_fenced(path):
    old, new = SqlJournal(path), SqlJournal(path)
    old.begin()
    write(old, fact(1))
    assert new.begin(take_over=True) == 2
    with pytest.raises(JournalTakenOverError, match=r"epoch 1 of .* is over"):
        write(old, fact(2), k=b"v")
    with pytest.raises(JournalTakenOverError):
        old.compact([], 1, frozenset())
    write(new, fact(3))
    assert epochs(old) == [1, 3]
    assert new.blob(key_of(b"v")) is None
    old.close()
    new.close()


def test_a_failed_append_writes_nothing(path):
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(1))
    with sqlite3.connect(path) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON schedulemesh_blobs "
            "BEGIN SELECT RAISE(ABORT, 'no more of this'); END"
        )
    other.close()
    said = r"the journal .* cannot be written: no more of this"
    with pytest.raises(JournalError, match=said) as failed:
        write(journal, fact(2), k=b"v")
    assert not isinstance(failed.value, InDoubtError)
    assert epochs(journal) == [1]
    write(journal, fact(3))
    assert epochs(journal) == [1, 3]
    journal.close()


@pytest.mark.parametrize("error", [JournalError("the disk can only be read"), MemoryError()])
def test_a_commit_without_its_high_water_mark_is_in_doubt_until_the_next_append(
    error, path, monkeypatch
):
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(1))
    with monkeypatch.context() as broken:
        broken.setattr(HighMark, "write", Mock(side_effect=error))
        with pytest.raises(InDoubtError, match=str(error) or "MemoryError"):
            write(journal, fact(2))
    assert epochs(journal) == [1, 2]  # what a process that begins now would find
    journal.append(b"", {})
    assert epochs(journal) == [1]
    write(journal, fact(3))
    assert epochs(journal) == [1, 3]
    journal.close()


def test_rows_left_by_a_failed_append_are_removed(path, monkeypatch):
    """The commit was on its way when the answer was lost."""
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(1))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE schedulemesh_journals SET last = 2")
        other.execute("INSERT INTO schedulemesh_commits VALUES (1, 2, 0, x'00')")
    other.close()
    with pytest.raises(JournalError):
        write(journal, fact(2))
    write(journal, fact(3))
    assert epochs(journal) == [1, 3]
    journal.close()


def test_every_commit_is_on_disk_and_a_reader_does_not_block_it(path):
    journal = SqlJournal(path)
    journal.begin()
    with journal._transaction("be looked at") as connection:
        pragmas = {
            name: connection.rows(f"PRAGMA {name}")[0][0]
            for name in ("journal_mode", "synchronous")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM schedulemesh_commits").fetchone()
    write(journal, ensured("a"))
    reader.close()
    journal.close()


def test_references_to_missing_rows_are_detected(path):
    journal = SqlJournal(path)
    journal.begin()
    journal.append(b'[{"type":"node_lost","node_id":"x","at":1.0}]', {})
    with pytest.raises(JournalError, match="facts contradict each other"):
        journal.load().fold()
    journal.append(b"[{}]", {})
    with pytest.raises(JournalError, match=r"commit 2 .* cannot be read: .* another state_path"):
        facts(journal)
    journal.compact([b"nonsense"], 2, frozenset())
    with pytest.raises(JournalError, match="snapshot cannot be read"):
        journal.load().fold()
    journal.close()


def test_a_file_that_was_moved_accepts_no_writes(path):
    journal = SqlJournal(path)
    journal.begin()
    path.rename(path.with_name("elsewhere.sqlite"))
    with pytest.raises(JournalError, match="cannot be written"):
        write(journal, fact(1))
    SqlJournal(path).close()
    with pytest.raises(JournalError, match="was replaced by another"):
        write(journal, fact(1))
    journal.close()


def test_destroying_leaves_no_file(path):
    journal = SqlJournal(path)
    journal.begin()
    write(journal, ensured("a"))
    journal.destroy()
    assert list(path.parent.iterdir()) == []


def test_destroying_memory_forgets_it():
    journal = MemoryJournal()
    journal.begin()
    write(journal, ensured("a"), k=b"v")
    journal.put_note("n", b"v")
    journal.destroy()
    assert facts(journal) == []
    assert journal.note("n") is None
    assert journal.blob(key_of(b"v")) is None


def test_names_with_odd_characters_are_files_too(tmp_path):
    path = tmp_path / "100% a?b#c&d" / "j 1.sqlite"
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(1))
    assert epochs(journal) == [1]
    journal.close()
    assert Counter(found.name for found in path.parent.iterdir()) == {
        "j 1.sqlite": 1,
        "j 1.sqlite.newest": 1,
    }


def test_the_tables_of_a_file_are_those_of_the_schema(tmp_path):
    SqlJournal(tmp_path / "j.sqlite").close()
    described = create_engine("sqlite://")
    metadata.create_all(described)
    file = create_engine(f"sqlite:///{tmp_path / 'j.sqlite'}")

    def tables(engine):
        found = inspect(engine)
        return {
            name: (
                [
                    (column["name"], str(column["type"]), column["nullable"])
                    for column in found.get_columns(name)
                ],
                found.get_pk_constraint(name)["constrained_columns"],
                [one["column_names"] for one in found.get_unique_constraints(name)],
            )
            for name in sorted(found.get_table_names())
        }

    assert tables(file) == tables(described)
    described.dispose()
    file.dispose()


def test_a_closed_journal_is_not_opened_again(path):
    """Threads that note or read something may come late; what they opened would be closed by nobody."""
    journal = SqlJournal(path)
    journal.begin()
    write(journal, ensured("a"), k=b"one")
    journal.close()
    for late in (
        lambda: journal.put_note("clock", b"1"),
        lambda: journal.blob(key_of(b"one")),
        journal.blob_sizes,
        journal.load,
        lambda: journal.append(b"", {}),
    ):
        with pytest.raises(JournalError, match="was closed"):
            late()
    journal.close()
