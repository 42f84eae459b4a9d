"""A supervisor that was superseded leaves alone what its successor has in Ray."""

from __future__ import annotations

import asyncio
import copy
import functools

import msgspec
import pytest

from schedulemesh.api.pools import CreatePool
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.runtime.backend import BackendError
from schedulemesh.runtime.journal.witness import Seen
from schedulemesh.runtime.reactor import JournalCondition
from schedulemesh.store.sql import SqlJournal
from tests.runtime import life as lives

#: Virtual seconds in which every loop has had several rounds.
ROUNDS_S = 100.0


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


async def successor_of(life):
    """A supervisor that has taken over, while the former one lives, in the same Ray."""
    successor = copy.copy(life)
    successor.requests = set()
    life.backend.restarted = True
    successor.begin()
    await successor.service.ready()
    return successor


def witnessed(life):
    (noted,) = (value for key, value in life.backend.kept.items() if key == "space/mesh")
    return msgspec.json.decode(noted, type=Seen)


async def learn(life):
    """Have a supervisor try to change something, which is refused."""
    spec = PoolSpec(name="late", resources=parse_resources({"cpu": 0}))
    await life.ask(CreatePool(spec=spec))
    await asyncio.sleep(lives.SOON_S)  # virtual time
    assert is_superseded(life)


def is_superseded(life):
    return life.running.reactor._condition is JournalCondition.SUPERSEDED


async def refused(*_args):
    raise BackendError("Ray does not answer")


@pytest.mark.parametrize("hint", ["a refused change", "the witness", "none"])
def test_agents_groups_and_witness_of_the_successor_are_left_alone(lived, monkeypatch, hint):
    async def story(life):
        await life.submit("old", cpu=1)
        await life.submit("old-grouped", cpu=1, pool="g")
        await asyncio.sleep(lives.SOON_S)  # virtual time
        successor = await successor_of(life)
        if hint != "the witness":
            monkeypatch.setattr(life.backend, "recall", refused)
        await successor.submit("new", cpu=1)
        await successor.submit("grouped", cpu=1, pool="g")
        if hint == "a refused change":
            await learn(life)
        await asyncio.sleep(ROUNDS_S)  # virtual time
        assert is_superseded(life)
        assert [actor.alive for actor in life.backend.actors] == [True] * 4
        assert len(life.backend.by_id) == 2
        assert witnessed(life).epoch == successor.running.reactor.epoch
        await successor.end()

    lived(story)


@pytest.mark.parametrize("waits_for", ["groups", "living_actors", "nodes"])
def test_one_that_is_superseded_while_it_recovers_never_takes_the_journal_back(lived, waits_for):
    async def story(life):
        await life.submit("old", cpu=1, pool="g")
        life.running.executor.stop_all()
        await life.running.reactor.close(destroy=False)
        life.backend.restarted = True
        life.begin()
        life.hold(waits_for)
        recovering = asyncio.ensure_future(life.service.ready())
        look = await life.held.next(waits_for)
        life.held.through.add(waits_for)
        successor = await successor_of(life)
        await successor.submit("new", cpu=1)
        await successor.submit("grouped", cpu=1, pool="g")
        before = life.backend.living(), set(life.backend.by_id)
        look.let()
        for asked in (recovering, life.service.ready()):
            with pytest.raises(SchedulerUnavailableError, match="has a successor"):
                await asyncio.wait_for(asked, ROUNDS_S)
        await asyncio.sleep(ROUNDS_S)  # virtual time
        assert (life.backend.living(), set(life.backend.by_id)) == before
        assert await successor.running.reactor.still_writes()
        life.service = successor.service
        life.requests |= successor.requests

    lived(story)


def test_one_that_is_superseded_leaves_a_group_alone_that_it_was_creating(lived):
    async def story(life):
        life.backend.full = {"n"}
        life.submit("grouped", cpu=1, pool="g")
        await asyncio.sleep(1.0)  # virtual time
        (ray_id,) = life.backend.by_id
        journal = SqlJournal(life.journal_file)
        journal.begin(take_over=True)
        await asyncio.sleep(ROUNDS_S)  # virtual time
        assert is_superseded(life)
        assert ray_id in life.backend.by_id
        journal.close()

    lived(story)


def test_one_that_is_superseded_looks_no_more_and_its_process_is_not_ended_in_ray(
    lived, monkeypatch
):
    async def story(life):
        successor = await successor_of(life)
        await asyncio.sleep(lives.SOON_S)  # virtual time
        assert is_superseded(life)
        await successor.end()
        looks = []

        async def nodes():
            looks.append(1)
            return []

        monkeypatch.setattr(life.backend, "nodes", nodes)
        await asyncio.sleep(ROUNDS_S)  # virtual time
        assert looks == []
        assert not life.backend.ended

    lived(story)


@pytest.mark.parametrize("ending", ["a silent agent", "a dead agent", "a lost group"])
def test_what_the_state_has_is_ended_only_by_the_writer_of_the_journal(lived, ending):
    async def story(life):
        await life.submit("old", cpu=1, pool="g")
        await asyncio.sleep(lives.SOON_S)  # virtual time
        # Neither Ray nor an answer tells of this one.
        journal = SqlJournal(life.journal_file)
        journal.begin(take_over=True)
        (ray_id,), (actor,) = life.backend.by_id, life.backend.actors
        if ending == "a silent agent":
            check = life.service._requests.agents.ensure_health(0.0)
            life.requests.add(asyncio.ensure_future(check))
        elif ending == "a dead agent":
            actor.alive = False
        else:
            life.backend.by_id[ray_id] = lives.rescheduling(life.backend.by_id[ray_id])
        await asyncio.sleep(ROUNDS_S)  # virtual time
        assert is_superseded(life)
        assert ray_id in life.backend.by_id
        assert actor.alive == (ending != "a dead agent")
        assert [cleaner.calls for cleaner in life.backend.cleaners if cleaner.calls] == []
        journal.close()

    lived(story)


@pytest.mark.parametrize(("waits_for", "pool"), [("create_group", "p"), ("members", "g")])
def test_one_that_is_superseded_starts_nothing_that_it_has_decided_before(lived, waits_for, pool):
    async def story(life):
        life.hold(waits_for)
        life.submit("late", gpu=1, pool=pool)
        call = await life.held.next(waits_for)
        journal = SqlJournal(life.journal_file)
        journal.begin(take_over=True)
        life.held.through.add(waits_for)
        await asyncio.sleep(0.6)  # virtual time, in which a successor may have begun
        call.let()
        await asyncio.sleep(ROUNDS_S)  # virtual time
        assert is_superseded(life)
        assert life.backend.actors == []
        journal.close()

    lived(story)
