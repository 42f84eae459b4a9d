"""Durable steps reach every subscriber, in order, and not before they are durable."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.engine.messages import stimuli as s
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import key_of
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.sql import SqlJournal
from tests.engine.builders import pool
from tests.runtime import virtual_time


def published(tmp_path, story):
    async def told():
        journal = SqlJournal(tmp_path / "j.sqlite")
        reactor = await Reactor.recover(journal)
        await story(reactor, journal)
        await reactor.close(destroy=False)

    asyncio.run(asyncio.wait_for(told(), 30.0))


def wanted(name):
    return s.PoolRequested(spec=pool(name, cpu=1))


def test_a_step_is_in_the_journal_before_anybody_hears_of_it(tmp_path):
    async def story(reactor, journal):
        stored = []
        reactor.subscribe(lambda step: stored.append(set(journal.load().fold().ledger.accounts)))
        await reactor.step(wanted("p"))
        assert stored == [{"p"}]

    published(tmp_path, story)


def test_subscribers_hear_of_steps_in_the_order_of_their_facts(tmp_path):
    async def story(reactor, journal):
        heard = []
        for subscriber in "ab":
            reactor.subscribe(
                lambda step, subscriber=subscriber: heard.append((subscriber, len(step.facts)))
            )
        steps = await asyncio.gather(*(reactor.step(wanted(name)) for name in ("p", "q", "p")))
        sizes = [len(step.facts) for step in steps]
        assert heard == [(subscriber, size) for size in sizes for subscriber in "ab"]

    published(tmp_path, story)


@pytest.mark.parametrize("rounds", range(4))
def test_a_step_without_facts_is_published_behind_those_on_which_it_was_decided(tmp_path, rounds):
    """However many rounds of the event loop after them it is decided."""

    async def story():
        reactor = await Reactor.recover(SqlJournal(tmp_path / "j.sqlite"))
        heard = []
        reactor.subscribe(lambda step: heard.append(len(step.facts)))
        first = asyncio.ensure_future(reactor.step(wanted("p")))
        for _ in range(1 + rounds):
            await asyncio.sleep(0)
        await reactor.step(wanted("p"))
        await first
        assert heard == [1, 0]
        await reactor.close(destroy=False)

    virtual_time.run(story())


def test_a_subscriber_that_fails_keeps_nobody_from_hearing(tmp_path, caplog):
    async def story(reactor, journal):
        heard = []
        reactor.subscribe(lambda step: 1 / 0)
        reactor.subscribe(heard.append)
        step = await reactor.step(wanted("p"))
        assert heard == [step]
        assert "ZeroDivisionError" in caplog.text

    published(tmp_path, story)


def test_observers_see_every_step_in_order_behind_the_answer_or_as_soon_as_somebody_looks(tmp_path):
    async def story(reactor, journal):
        seen, answered = [], []
        reactor.observers.add(seen.append)
        for name in "pqr":
            answered.append(await reactor.step(wanted(name)))
            assert seen == answered[:-1]
            reactor.observers.catch_up()
            assert seen == answered
            answered.append(await reactor.step(wanted(name)))
            for _ in range(4):  # rounds of the loop
                await asyncio.sleep(0)
            assert seen == answered

    published(tmp_path, story)


def test_an_observer_sees_what_was_durable_when_the_reactor_closes_and_nothing_from_before_it(
    tmp_path,
):
    seen, last = [], []

    async def story(reactor, journal):
        reactor.observers.add(lambda step: 1 / 0)
        await reactor.step(wanted("p"))
        reactor.observers.add(seen.append)
        last.append(await reactor.step(wanted("q")))

    published(tmp_path, story)
    assert seen == last


def test_a_caller_that_is_cancelled_takes_no_step_and_no_other_caller_with_it(tmp_path):
    async def story(reactor, journal):
        heard = []
        reactor.subscribe(heard.append)
        cancelled = [
            asyncio.ensure_future(reactor.step(wanted("p"))),
            asyncio.ensure_future(reactor.steps([wanted("q")], {})),
            asyncio.ensure_future(reactor.keep({key_of(b"bytes"): b"bytes"})),
        ]
        others = [
            asyncio.ensure_future(reactor.step(wanted("p"))),  # decided on what is not durable yet
            asyncio.ensure_future(reactor.read(lambda: set(reactor.state.ledger.accounts))),
            asyncio.ensure_future(reactor.flushed()),
        ]
        await asyncio.sleep(0)  # all are decided, nothing is durable
        for task in cancelled:
            assert task.cancel()
        same, accounts, _ = await asyncio.gather(*others)
        assert accounts == {"p", "q"}
        assert not same.facts
        published = [step.stimulus.spec.name for step in heard]
        assert published == ["p", "q", "p"]
        assert await reactor.blob(key_of(b"bytes")) == b"bytes"
        assert all(task.cancelled() for task in cancelled)

    published(tmp_path, story)


def test_a_caller_that_is_cancelled_while_writing_fails_leaves_the_reactor_working(tmp_path):
    async def story(reactor, journal):
        append, failing = journal.append, [True]

        def appended(record, blobs):
            if failing:
                failing.clear()
                raise JournalError("the disk is full")
            return append(record, blobs)

        journal.append = appended
        step = asyncio.ensure_future(reactor.step(wanted("p")))
        await asyncio.sleep(0)
        step.cancel()
        await reactor.flushed()
        await reactor.writable()
        assert not reactor.state.ledger.accounts
        await reactor.step(wanted("p"))
        assert set(reactor.state.ledger.accounts) == {"p"}

    published(tmp_path, story)
