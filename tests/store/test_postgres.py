"""The same journal in a real PostgreSQL server, that tests start and stop."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text

from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import key_of
from schedulemesh.store.journal import InDoubtError
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import ensured, epochs, fact, pools, write, written


def execute(address, statement):
    engine = create_engine(address.url)
    with engine.begin() as connection:
        found = connection.execute(text(statement))
        rows = found.all() if found.returns_rows else []
    engine.dispose()
    return rows


def test_several_schedulers_share_a_database(database):
    one, two = SqlJournal(database("one")), SqlJournal(database("two"))
    assert (one.begin(), two.begin()) == (1, 1)
    write(one, ensured("a"), k=b"1")
    write(two, ensured("b"), k=b"2")
    assert (pools(one), pools(two)) == (["a"], ["b"])
    assert (one.blob(key_of(b"1")), two.blob(key_of(b"2"))) == (b"1", b"2")
    one.compact(written(one.load().fold()), 1, frozenset())
    assert (pools(one), pools(two)) == (["a"], ["b"])
    one.put_note("n", b"1")
    assert two.note("n") is None
    two.put_note("n", b"2")
    one.destroy()
    assert two.blob(key_of(b"2")) == b"2"
    assert two.note("n") == b"2"
    fresh = SqlJournal(database("one"))
    assert fresh.note("n") is None
    fresh.close()
    write(two, ensured("c"))
    two.close()
    again = SqlJournal(database("two"), must_exist=True)
    assert pools(again) == ["b", "c"]
    again.close()


def test_a_journal_that_must_be_there_is_not_made(database):
    with pytest.raises(
        JournalError, match=r"ran before, but its journal .*/gone in postgresql.* is gone"
    ):
        SqlJournal(database("gone"), must_exist=True)
    journal = SqlJournal(database("there"))
    journal.close()
    SqlJournal(database("there"), must_exist=True).close()


def test_commits_are_on_the_servers_disk(database):
    journal = SqlJournal(database("a"))
    with journal._transaction("be looked at") as connection:
        assert connection.rows("SHOW synchronous_commit") == [("on",)]
    journal.close()


def test_it_continues_when_the_server_is_back(database, server):
    journal = SqlJournal(database("a"))
    journal.begin()
    write(journal, fact(1))
    server.stop()
    try:
        for _ in range(2):
            with pytest.raises(JournalError, match=r"the journal .* cannot be written"):
                write(journal, fact(2))
        with pytest.raises(JournalError, match="cannot be read"):
            journal.blob(key_of(b"v"))
        with pytest.raises(JournalError, match="cannot be opened"):
            SqlJournal(database("b"))
    finally:
        server.start()
    write(journal, fact(3))
    assert epochs(journal) == [1, 3]
    other = SqlJournal(database("a"))
    with pytest.raises(JournalError, match="is in use by another connection"):
        other.begin()  # the lock was taken again with the new connection
    other.close()
    journal.close()


def test_a_lost_connection_is_reopened(database):
    journal = SqlJournal(database("a"))
    journal.begin()
    write(journal, fact(1))
    execute(
        journal.address,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
    )
    with pytest.raises(JournalError):
        write(journal, fact(2))
    write(journal, fact(3))
    assert epochs(journal) == [1, 3]
    journal.close()


def test_a_commit_whose_answer_is_lost_is_in_doubt(database, monkeypatch):
    journal = SqlJournal(database("a"))
    journal.begin()
    write(journal, fact(1))
    inserted = journal._insert

    def then_cut_off(connection, *given):
        inserted(connection, *given)
        ((pid,),) = connection.rows("SELECT pg_backend_pid()")
        execute(journal.address, f"SELECT pg_terminate_backend({pid}, 30000)")

    with monkeypatch.context() as cut:
        cut.setattr(journal, "_insert", then_cut_off)
        with pytest.raises(InDoubtError):
            write(journal, fact(2))
    write(journal, fact(3))
    assert epochs(journal) == [1, 3]
    journal.close()


def test_rows_that_are_gone_or_changed_are_not_half_read(database):
    journal = SqlJournal(database("a"))
    journal.begin()
    for number in range(1, 4):
        write(journal, fact(number))
    mine = f"journal = {journal._id} AND number = 2"
    execute(journal.address, f"UPDATE schedulemesh_commits SET facts = '\\x5b5d' WHERE {mine}")
    with pytest.raises(JournalError, match=r"commit 2 is not what was written.*restore its rows"):
        journal.load()
    execute(journal.address, f"DELETE FROM schedulemesh_commits WHERE {mine}")
    with pytest.raises(JournalError, match="commit 2 is missing"):
        journal.load()
    journal.close()


def test_a_newer_format_is_refused(database):
    address = database("a")
    SqlJournal(address).close()
    execute(address, "UPDATE schedulemesh_meta SET value = value + 1")
    try:
        with pytest.raises(
            JournalError,
            match=f"has format {FORMAT_VERSION + 1}, this ScheduleMesh reads formats 1 to {FORMAT_VERSION}",
        ):
            SqlJournal(address)
    finally:
        execute(address, "UPDATE schedulemesh_meta SET value = value - 1")


def test_a_journal_that_was_removed_meanwhile(database):
    journal, other = SqlJournal(database("a")), SqlJournal(database("a"))
    journal.begin()
    other.begin(take_over=True)
    other.destroy()
    with pytest.raises(JournalError, match="is over"):
        write(journal, fact(1))
    with pytest.raises(JournalError, match="was removed while it was in use"):
        journal.load()
    journal.close()
