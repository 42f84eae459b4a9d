"""Callers of a change that may be durable though it failed are told nothing that may turn out to be wrong."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import CreatePool, ListPools
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.states import GetSavedState, RestoreTask
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import (
    Details,
    Listed,
    PoolResponse,
    Response,
    SavedBytes,
    decode_answer,
)
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime import reactor as reactor_module
from schedulemesh.store.recovery import Stored
from schedulemesh.store.sql import SqlJournal
from tests.engine.builders import Mesh
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend
from tests.store.builders import Unsure

KEY = key_of(b"class")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(reactor_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(reactor_module, "_RETRY_MAX_S", 0.05)


class Life:
    """One process of the supervisor."""

    def __init__(self, backend, journal_file):
        self.journal = None
        self.failed = asyncio.Event()
        self.loop = asyncio.get_running_loop()

        def opened(path, *, must_exist):
            self.journal = Unsure(path, must_exist=must_exist)
            return self.journal

        self.service = supervisor(backend, journal_file, opened=opened)

    async def begun(self, *outcomes):
        """It runs, and its next writes have these outcomes; the last one is that of all others, too."""
        self.reactor = (await self.service.ready()).running.reactor
        self.next_writes(*outcomes)
        return self

    async def with_pool(self):
        """It runs, and has a pool."""
        await self.begun(None)
        await self.asks_for_pool("p")
        return self

    def next_writes(self, *outcomes):
        """Have the next writes end like this, and all after them like the last."""
        given = iter(outcomes)

        def fails():
            outcome = next(given, outcomes[-1])
            if outcome:
                self.loop.call_soon_threadsafe(self.failed.set)
            return outcome

        self.journal.fails = fails

    async def has_failed(self):
        """Return when a write has failed, and all of it is rolled back."""
        await self.failed.wait()
        await self.reactor.flushed()

    async def has_decided(self, request_id):
        """Return when this submission is decided, and not durable yet."""
        while request_id not in self.reactor.state.requests:  # noqa: ASYNC110  # see below
            await asyncio.sleep(0)  # what is decided and not durable has no event

    async def asked(self, request, kind=Response):
        answer = await self.service.ask(encode_request(request))
        return decode_answer(answer[0] if isinstance(answer, tuple) else answer, kind)

    def asks(self, request, kind=Response):
        """A request in the background."""
        return asyncio.ensure_future(self.asked(request, kind))

    def asks_for_pool(self, name):
        spec = PoolSpec(name=name, resources=parse_resources({"cpu": 1}))
        return self.asks(CreatePool(spec=spec), PoolResponse)

    async def pools(self):
        return [pool["name"] for pool in (await self.asked(ListPools(), Listed)).rows]

    async def killed(self):
        (await self.service.ready()).running.executor.stop_all()
        await self.reactor.close(destroy=False)


@pytest.fixture
def told(tmp_path):
    """Runs a story with supervisors of one file."""

    def run(story):
        backend = FakeBackend()

        def life():
            return Life(backend, tmp_path / "mesh.sqlite")

        asyncio.run(asyncio.wait_for(story(life), 60))

    return run


async def is_held(*requests):
    """Whether none of these is answered."""
    done, _ = await asyncio.wait(requests, timeout=0.1)  # time in which a wrong answer would come
    return not done


def submission(task_id):
    given = Mesh().submission(task_id, cpu=1, class_key=KEY)
    named = msgspec.structs.replace(given, request_id=f"submit {task_id}")
    return SubmitTask(submission=named, blobs={KEY: b"class"})


# A change of a pool is recorded for audit first, and then made: two writes.


def test_a_change_in_doubt_is_refused_once_it_cannot_become_durable_any_more(told):
    async def story(lives):
        life = await lives().begun(None, "after", "before")
        first = life.asks_for_pool("p")
        await life.has_failed()
        later = await life.asks_for_pool("q")  # nothing of it was written
        assert later.reason == "journal_unavailable"
        assert await life.pools() == []
        assert await is_held(first)
        life.journal.fails = None
        assert (await first).reason == "journal_unavailable"
        assert await life.pools() == []
        await life.killed()
        after = await lives().begun(None)
        assert await after.pools() == []
        await after.killed()

    told(story)


def test_a_change_that_was_not_written_is_refused_at_once(told):
    async def story(lives):
        life = await lives().begun("before")
        assert (await life.asks_for_pool("p")).reason == "journal_unavailable"
        life.journal.fails = None
        await life.killed()

    told(story)


def test_nobody_was_told_that_a_change_was_refused_which_the_next_process_finds(told):
    async def story(lives):
        life = await lives().begun(None, "after", "before")
        asked = life.asks_for_pool("p")
        await life.has_failed()
        assert await is_held(asked)
        await life.killed()
        assert await is_held(asked)
        asked.cancel()
        after = await lives().begun(None)
        assert await after.pools() == ["p"]
        await after.killed()

    told(story)


def test_after_a_takeover_only_the_new_writer_knows(told, tmp_path):
    async def story(lives):
        life = await lives().begun(None, "after", "before")
        asked = life.asks_for_pool("p")
        await life.has_failed()
        other = SqlJournal(tmp_path / "mesh.sqlite")
        other.begin(take_over=True)
        life.journal.fails = None
        await life.reactor._until(reactor_module.JournalCondition.SUPERSEDED)
        later = await life.asks_for_pool("q")
        assert "another process has taken it over" in later.error
        assert await is_held(asked)
        assert list(other.load().fold().ledger.accounts) == ["p"]
        asked.cancel()
        other.close()
        await life.killed()

    told(story)


def test_a_repeated_request_is_as_much_in_doubt_as_the_first(told):
    async def story(lives):
        life = await lives().with_pool()
        life.next_writes("after", "before")
        first = life.asks(submission("t"))
        await life.has_failed()
        again = life.asks(submission("t"))
        assert (await life.asked(submission("u"))).reason == "journal_unavailable"
        assert await is_held(first, again)
        life.journal.fails = None
        assert {(await each).reason for each in (first, again)} == {"journal_unavailable"}
        await life.killed()

    told(story)


def test_a_request_that_is_repeated_before_the_failure_is_known_is_in_doubt(told):
    async def story(lives):
        life = await lives().with_pool()
        life.next_writes("after", "before")
        first = life.asks(submission("t"))
        await life.has_decided("submit t")
        # The thread that writes fails while this one stands still.
        while not life.reactor._writer.broken:
            pass
        # The first to notice is a query, and the repeated request comes before the first is told.
        query = life.asks(ListPools(), Listed)
        again = life.asks(submission("t"))
        assert await is_held(first, again)
        await query
        life.journal.fails = None
        await asyncio.gather(first, again)
        await life.killed()

    told(story)


def test_a_repeated_request_is_answered_though_nothing_can_be_written(told):
    async def story(lives):
        life = await lives().with_pool()
        accepted = await life.asked(submission("t"))
        assert accepted.outcome.task_id == "t"
        life.next_writes("before")
        assert (await life.asked(submission("u"))).reason == "journal_unavailable"
        assert await life.asked(submission("t")) == accepted
        life.journal.fails = None
        await life.killed()

    told(story)


def test_a_change_in_doubt_does_not_hold_up_others_of_the_same_thing(told):
    async def story(lives):
        life = await lives().begun(None, "after", "before")
        first = life.asks(ChangePolicy(changes={"min_preempt_score": 1.0}, client="c"), Details)
        await life.has_failed()
        change = ChangePolicy(changes={"min_preempt_score": 2.0}, client="c")
        assert (await life.asked(change, Details)).reason == "journal_unavailable"
        assert await is_held(first)
        life.journal.fails = None
        assert (await first).reason == "journal_unavailable"
        await life.killed()

    told(story)


def test_a_journal_that_cannot_be_folded_any_more_ends_all_changes(told, monkeypatch):
    async def story(lives):
        def contradicts(_stored):
            raise JournalError("it contradicts itself")

        life = await lives().begun(None, "after", None)
        with monkeypatch.context() as broken:
            broken.setattr(Stored, "fold", contradicts)
            asked = life.asks_for_pool("p")
            await life.has_failed()
            later = await life.asks_for_pool("q")
        assert later.error.endswith("nothing can be changed now: it contradicts itself")
        assert await is_held(asked)
        asked.cancel()
        await life.killed()
        after = await lives().begun(None)
        assert await after.pools() == ["p"]
        await after.killed()

    told(story)


def test_a_restore_that_is_repeated_before_it_is_rolled_back_is_answered(told):
    async def story(lives):
        life = await lives().with_pool()
        await life.asked(submission("t"))
        await life.asked(PreemptTask(task_id="t", request_id="preempt t"))
        stored = await life.asked(GetSavedState(task_id="t"), SavedBytes)
        saved = msgspec.msgpack.decode(stored.state, type=SavedState)
        failed = []

        def fails():
            if failed or "restore t" in life.reactor.state.requests:
                failed.append("before")
            return failed[-1] if failed else None

        life.journal.fails = fails
        restore = RestoreTask(saved=saved, request_id="restore t")
        first = life.asks(restore)
        await life.has_decided("restore t")
        # As one does that was recorded for audit before.
        again = asyncio.ensure_future(life.service._requests.states.restore(restore))
        assert (await first).reason == "journal_unavailable"
        with pytest.raises(JournalError):
            await again
        life.journal.fails = None
        await life.reactor.writable()
        assert (await life.asked(restore)).outcome.task_id == "t"
        await life.killed()

    told(story)
