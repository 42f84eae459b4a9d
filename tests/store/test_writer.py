"""Group commit: in order, together, and nothing durable after a loss."""

from __future__ import annotations

import asyncio
import threading

import pytest

from schedulemesh.engine.codec import decode_facts
from schedulemesh.engine.messages.facts import StateHandlersRegistered
from schedulemesh.errors import JournalError, NotStorableError
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal
from schedulemesh.store.writer import GroupWriter
from tests.store.builders import epochs, fact, written


class Gated(MemoryJournal):
    """A journal whose appends wait at a gate, and fail when told to."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.commits = []
        self.failing = ""
        #: The most bytes of a blob that it takes.
        self.largest = 1000

    def append(self, record, blobs):
        self.arrived.set()
        assert self.gate.wait(30)
        if self.failing:
            raise JournalError(self.failing)
        if any(len(data) > self.largest for data in blobs.values()):
            raise NotStorableError("string or blob too big")
        self.commits.append([found.epoch for found in decode_facts(record or b"[]")])
        super().append(record, blobs)


def on_loop(test):
    """Run an async test with a writer over a gated journal, which is closed afterwards."""

    def run():
        async def with_writer():
            journal = Gated()
            journal.begin()
            writer = GroupWriter(journal, journal.load())
            try:
                await test(journal, writer)
            finally:
                journal.gate.set()
                await writer.close()

        asyncio.run(asyncio.wait_for(with_writer(), 60))

    run.__name__ = test.__name__
    return run


async def arrived(journal):
    await asyncio.get_running_loop().run_in_executor(None, journal.arrived.wait, 30)


@on_loop
async def test_it_is_durable_when_it_is_done(journal, writer):
    await writer.append([fact(1)], {"k": b"v"})
    assert epochs(journal) == [1]
    assert journal.blob("k") == b"v"
    await writer.append([])
    await writer.flushed()


@on_loop
async def test_appends_during_a_commit_join_the_next_one(journal, writer):
    journal.gate.clear()
    first = writer.append([fact(1)])
    await arrived(journal)
    rest = [writer.append([fact(n)]) for n in range(2, 20)]
    assert not first.done()
    flushed = asyncio.ensure_future(writer.flushed())
    journal.gate.set()
    await asyncio.gather(first, *rest, flushed)
    assert journal.commits == [[1], list(range(2, 20))]


@on_loop
async def test_after_a_failure_everything_fails_until_resumed(journal, writer):
    await writer.append([fact(1)])
    journal.gate.clear()
    journal.arrived.clear()
    journal.failing = "disk full"
    lost = writer.append([fact(2)])
    await arrived(journal)
    behind = [writer.append([fact(3)]), writer.append([fact(4)])]
    flushed = asyncio.ensure_future(writer.flushed())
    journal.gate.set()
    outcomes = await asyncio.gather(lost, *behind, flushed, return_exceptions=True)
    assert [str(error) for error in outcomes] == ["disk full"] * 4
    journal.failing = ""
    with pytest.raises(JournalError, match="disk full"):
        await writer.append([fact(5)])
    assert epochs(journal) == [1]
    assert writer.broken
    await writer.resume()
    assert not writer.broken
    await writer.append([fact(6)])
    await writer.flushed()
    assert epochs(journal) == [1, 6]


@on_loop
async def test_resuming_fails_while_the_journal_does(journal, writer):
    journal.failing = "disk full"
    with pytest.raises(JournalError):
        await writer.append([fact(1)])
    with pytest.raises(JournalError, match="disk full"):
        await writer.resume()
    with pytest.raises(JournalError, match="disk full"):
        await writer.flushed()
    with pytest.raises(JournalError, match="disk full"):
        await writer.mark()
    with pytest.raises(JournalError, match="disk full"):
        await writer.compact([], 0, frozenset())
    assert writer.broken


@on_loop
async def test_a_value_that_the_store_refuses_fails_alone(journal, writer):
    journal.gate.clear()
    first = writer.append([fact(1)])
    await arrived(journal)
    before = [writer.append([fact(2)]), writer.append([fact(3)], {"small": b"x"})]
    refused = writer.append([fact(4)], {"large": b"x" * 1001})
    after = writer.append([fact(5)])
    flushed = asyncio.ensure_future(writer.flushed())
    journal.gate.set()
    await asyncio.gather(first, *before)
    with pytest.raises(NotStorableError, match="too big"):
        await refused
    for undone in (after, flushed, writer.append([fact(6)])):
        with pytest.raises(JournalError, match="after a change that cannot be stored is undone"):
            await undone
    assert epochs(journal) == [1, 2, 3]
    await writer.resume()
    await writer.append([fact(7)])
    assert epochs(journal) == [1, 2, 3, 7]


@on_loop
async def test_blobs_that_are_refused_without_a_fact_undo_nothing(journal, writer):
    journal.gate.clear()
    first = writer.append([fact(1)])
    await arrived(journal)
    refused = writer.append([], {"k": bytes(journal.largest + 1)})
    second = writer.append([fact(2)])
    journal.gate.set()
    await asyncio.gather(first, second)
    with pytest.raises(NotStorableError, match="too big"):
        await refused
    assert not writer.broken
    assert epochs(journal) == [1, 2]


@on_loop
async def test_a_snapshot_is_of_what_was_appended_before_its_mark(journal, writer):
    journal.gate.clear()
    before = writer.append([fact(1)])
    await arrived(journal)
    second = writer.append([fact(2)])
    mark = writer.mark()
    third = writer.append([fact(3)])
    assert writer.fresh_facts == 0
    journal.gate.set()
    await asyncio.gather(before, second, third)
    assert journal.commits == [[1], [2], [3]]
    assert (await mark).last == 2
    assert writer.fresh_facts == 1
    parts = written(journal.load().fold())
    await writer.compact(parts, 2, frozenset())
    assert epochs(journal) == [3]
    assert journal.load().parts == writer.stored.parts == parts
    assert (writer.stored.base, writer.stored.last) == (2, 3)


@on_loop
async def test_a_cancelled_waiter_does_not_affect_others(journal, writer):
    journal.gate.clear()
    first, second = writer.append([fact(1)]), writer.append([fact(2)])
    await arrived(journal)
    first.cancel()
    journal.gate.set()
    await second
    assert epochs(journal) == [1, 2]


def test_closing_writes_what_is_queued(tmp_path):
    path = tmp_path / "j.sqlite"

    async def write():
        journal = SqlJournal(path)
        journal.begin()
        writer = GroupWriter(journal, journal.load())
        queued = [writer.append([fact(n)]) for n in range(50)]
        await writer.close()
        await asyncio.gather(*queued)
        journal.close()

    asyncio.run(write())
    journal = SqlJournal(path)
    assert epochs(journal) == list(range(50))
    journal.close()


def test_a_database_that_fails_fails_its_writers(tmp_path):
    """The real journal, taken over by another writer in the midst."""

    async def write():
        journal = SqlJournal(tmp_path / "j.sqlite")
        journal.begin()
        writer = GroupWriter(journal, journal.load())
        await writer.append([fact(1)])
        other = SqlJournal(tmp_path / "j.sqlite")
        other.begin(take_over=True)
        other.close()
        with pytest.raises(JournalError, match="is over: another process has taken it over"):
            await writer.append([fact(2)])
        assert epochs(journal) == [1]
        await writer.close()
        journal.close()

    asyncio.run(write())


@on_loop
async def test_an_append_that_cannot_be_encoded_fails_alone(journal, writer):
    poison = StateHandlersRegistered(pool_name="\udcff", preserver_key=None, restorer_key=None)
    journal.gate.clear()
    first = writer.append([fact(1)])
    with pytest.raises(NotStorableError, match="pool_name of StateHandlersRegistered"):
        writer.append([fact(2), poison])
    third = writer.append([fact(3)])
    journal.gate.set()
    await asyncio.gather(first, third)
    assert epochs(journal) == [1, 3]
    assert not writer.broken
