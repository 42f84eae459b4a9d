"""One writer at a time, between real processes: a living one is left alone, a former one is fenced."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.errors import JournalError, JournalTakenOverError
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store import sql
from schedulemesh.store.address import address_of
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import epochs, fact, write
from tests.store.writing_process import run


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    """(state_path, namespace)"""
    if request.param == "sqlite":
        return str(tmp_path), "one"
    address = request.getfixturevalue("database")("shared")
    return address.url.render_as_string(hide_password=False), address.namespace


@pytest.fixture
def mine(place, tmp_path):
    journal = SqlJournal(address_of(place[0], tmp_path, place[1], "shared"))
    yield journal
    journal.close()


def test_a_living_writer_is_left_alone(place, mine):
    with run(*place) as other:
        assert other.first == "epoch 1"
        with pytest.raises(JournalError, match=r"is in use by .*; end that scheduler first"):
            mine.begin()
        assert other.ask(7) == "done"
        assert epochs(mine) == [7]


def test_a_takeover_fences_the_former_writer(place, mine):
    with run(*place) as other:
        assert other.ask(7) == "done"
        assert mine.begin(take_over=True) == 2
        assert other.ask(8).startswith("JournalTakenOverError epoch 1 of the journal")
        write(mine, fact(9))
        assert other.ask(10).startswith("JournalTakenOverError")
        assert epochs(mine) == [7, 9]


def test_a_dead_writer_does_not_block_its_successor(place, mine, monkeypatch):
    # The server notices the death on its own time.
    monkeypatch.setattr(sql, "_PATIENCE_S", 30.0)
    with run(*place) as other:
        assert other.ask(7) == "done"
        other.process.kill()
        other.process.wait()
        assert mine.begin() == 2
        assert epochs(mine) == [7]


def test_a_second_process_is_refused_clearly(place, mine):
    mine.begin()
    with run(*place) as other:
        assert other.first.startswith("refused: the journal")
        assert "is in use by" in other.first
    write(mine, fact(1))


def test_the_process_is_named(tmp_path):
    with run(tmp_path, "one") as other:
        journal = SqlJournal(address_of(str(tmp_path), tmp_path, "one", "shared"))
        with pytest.raises(JournalError, match=f"in use by process {other.process.pid} on "):
            journal.begin()
        journal.close()


def test_one_journal_in_one_process_taken_over_twice(mine, place, tmp_path):
    mine.begin()
    second = SqlJournal(address_of(place[0], tmp_path, place[1], "shared"))
    assert second.begin(take_over=True) == 2
    with pytest.raises(JournalTakenOverError):
        write(mine, fact(1))
    second.close()


def test_a_former_writer_neither_writes_notes_nor_removes_the_journal(mine, place, tmp_path):
    mine.begin()
    mine.put_note("clock", b"1")
    second = SqlJournal(address_of(place[0], tmp_path, place[1], "shared"))
    second.begin(take_over=True)
    write(second, fact(1))
    second.put_note("clock", b"2")
    with pytest.raises(JournalTakenOverError, match="epoch 1 of the journal"):
        mine.put_note("clock", b"3")
    with pytest.raises(JournalTakenOverError, match="epoch 1 of the journal"):
        mine.destroy()
    assert second.note("clock") == b"2"
    assert epochs(second) == [1]
    write(second, fact(2))
    second.destroy()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_superseded_supervisor_that_is_shut_down_leaves_the_journal(place, tmp_path):
    address = address_of(place[0], tmp_path, place[1], "shared")

    async def story():
        former = await Reactor.recover(SqlJournal(address))
        successor = SqlJournal(address)
        successor.begin(take_over=True)
        await former.close(destroy=True)
        write(successor, fact(2))
        assert epochs(successor)[-1] == 2
        successor.close()

    asyncio.run(story())
