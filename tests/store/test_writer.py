"""Group commit: in order, together, and nothing durable after a loss."""

from __future__ import annotations

import asyncio
import threading

import pytest

from schedulemesh.engine.facts import EpochBegun, StateHandlersRegistered
from schedulemesh.errors import JournalError
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal
from schedulemesh.store.writer import GroupWriter


def fact(n):
    return EpochBegun(epoch=n, at=float(n))


def epochs(journal):
    return [found.epoch for found in journal.facts()]


class Gated(MemoryJournal):
    """A journal whose appends wait at a gate, and fail when told to."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.commits = []
        self.failing = ""

    def append(self, facts, blobs):
        self.arrived.set()
        assert self.gate.wait(30)
        if self.failing:
            raise JournalError(self.failing)
        self.commits.append([found.epoch for found in facts])
        super().append(facts, blobs)


def on_loop(test):
    """Run an async test with a writer over a gated journal, which is closed afterwards."""

    def run():
        async def with_writer():
            journal = Gated()
            journal.begin()
            writer = GroupWriter(journal)
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
async def test_what_arrives_during_a_commit_goes_with_the_next(journal, writer):
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
    writer.resume()
    await writer.append([fact(6)])
    await writer.flushed()
    assert epochs(journal) == [1, 6]


@on_loop
async def test_a_waiter_that_gave_up_disturbs_nobody(journal, writer):
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
        writer = GroupWriter(journal)
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
        writer = GroupWriter(journal)
        await writer.append([fact(1)])
        other = SqlJournal(tmp_path / "j.sqlite")
        other.begin()
        other.close()
        with pytest.raises(JournalError, match="is over; another writes now"):
            await writer.append([fact(2)])
        assert epochs(journal) == [1]
        await writer.close()
        journal.close()

    asyncio.run(write())


def test_what_cannot_be_written_down_fails_its_writers_and_no_others():
    async def write():
        journal = MemoryJournal()
        journal.begin()
        writer = GroupWriter(journal)
        poison = StateHandlersRegistered(pool_name="\udcff", preserver_key=None, restorer_key=None)
        with pytest.raises(JournalError, match="surrogates"):
            await asyncio.wait_for(writer.append([poison]), 30)
        writer.resume()
        await writer.append([fact(1)])
        assert epochs(journal) == [1]
        await writer.close()

    asyncio.run(write())
