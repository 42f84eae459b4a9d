"""A read of the history sees one state of it, whatever is written meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import create_engine, update

from schedulemesh.config.settings import HistorySettings
from schedulemesh.runtime.history.recorder import history_of
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.history.schema import progress
from schedulemesh.store.sql import SqlJournal


@pytest.fixture
def address(database):
    return database("mesh")


def test_a_read_of_a_database_sees_one_state_in_all_its_statements(address):
    async def story():
        journal = SqlJournal(address)
        reactor = await Reactor.recover(journal)
        history = history_of(journal, reactor, HistorySettings())
        history.start(Loops())
        assert await history.caught_up(60.0) == 0
        others = create_engine(journal.address.url)

        def look(found):
            before = found.event_span()
            with others.begin() as connection:
                mine = progress.c.journal == journal.place().journal
                written = connection.execute(
                    update(progress).where(mine).values(next_event=progress.c.next_event + 5)
                )
                assert written.rowcount == 1
            return before, found.event_span()

        before, after = await history.read(look)
        assert before == after
        assert (await history.read(lambda found: found.event_span()))[1] == before[1] + 5
        others.dispose()
        await reactor.close(destroy=False)

    asyncio.run(asyncio.wait_for(story(), 120.0))
