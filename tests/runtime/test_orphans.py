"""Orphans: what a journal that was put back does not know is kept, listed, and ended only when asked."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.engine.state.groups import GroupTable
from schedulemesh.runtime.agents.endings import Endings
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import GroupView
from schedulemesh.runtime.cluster.orphans import Orphans
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.journal.witness import Seen, Witness
from schedulemesh.store.journal import MemoryJournal
from tests.runtime.fake_backend import FakeBackend

A, B, WARM = (("here", f"schedulemesh:mesh:{name}") for name in ("a#7", "b#12", "ready:g:x"))


class Life:
    """One life of a supervisor, as far as orphans are concerned."""

    def __init__(self, backend, journal):
        self.agents = Agents(backend, "mesh", "here")
        self.groups = Groups(backend, "mesh", "here")
        self.orphans = Orphans(self.agents, self.groups, journal)
        self._backend = backend

    async def begin(self, *, rolled_back, claimed=()):
        """Those that may be ended."""
        unclaimed = self.agents.unclaimed_actors(self._backend.living(), set(claimed))
        ended = await self.orphans.take(unclaimed, rolled_back=rolled_back)
        living = await self.groups.living()
        await self.groups.recover(GroupTable(), living, Endings(), keep_all=rolled_back)
        await self.orphans.note()
        return set(ended)


@pytest.fixture
def backend():
    made = FakeBackend()
    made.others = {A, B, WARM, ("here", "a user's"), ("elsewhere", "schedulemesh:mesh:c#99")}
    return made


def run(story):
    asyncio.run(asyncio.wait_for(story, 10.0))


def test_with_its_own_journal_nothing_is_an_orphan(backend):
    async def story():
        life = Life(backend, MemoryJournal())
        assert await life.begin(rolled_back=False, claimed=[A]) == {B, WARM}
        assert life.agents.orphans == set()

    run(story())


def test_after_a_restored_backup_orphans_are_kept_across_restarts(backend):
    async def story():
        journal = MemoryJournal()
        mark = "schedulemesh:mesh@here:group:p-pg-4"
        backend.by_id["1"] = GroupView(ray_id="1", name=mark, state="CREATED", node_ids=("n",))
        life = Life(backend, journal)
        assert await life.begin(rolled_back=True, claimed=[A]) == set()
        assert life.agents.orphans == {B, WARM}
        assert life.groups.orphans == {"p-pg-4"}
        later = Life(backend, journal)
        new = ("here", "schedulemesh:mesh:new#1000001")
        backend.others.add(new)
        assert await later.begin(rolled_back=False, claimed=[A]) == {new}
        assert later.agents.orphans == {B, WARM}
        assert later.groups.orphans == {"p-pg-4"}
        assert await later.orphans.end([B[1], "unknown"]) == [B[1]]
        assert "1" in backend.by_id
        assert await later.orphans.end() == [WARM[1]]
        assert backend.by_id == {}
        last = Life(backend, journal)
        assert await last.begin(rolled_back=False, claimed=[A, new]) == set()
        assert (last.agents.orphans, last.groups.orphans) == (set(), set())
        assert A in backend.others

    run(story())


def test_one_that_ends_by_itself_is_forgotten(backend):
    async def story():
        life = Life(backend, MemoryJournal())
        await life.begin(rolled_back=True)
        backend.others.discard(A)
        life.orphans.forget_dead(backend.others)
        assert life.agents.orphans == {B, WARM}
        assert life.agents.orphan_of("b") == B[1]
        assert life.agents.orphan_of("a") is None

    run(story())


def test_the_newest_incarnation_is_read_from_names_with_our_mark(backend):
    agents = Agents(backend, "mesh", "here")
    assert agents.newest_incarnation(backend.others) == 12
    assert agents.newest_incarnation(set()) == 0


def test_the_witness_knows_what_was_noted_until_it_forgets(backend):
    async def story():
        witness = Witness(backend, "here", "mesh")
        assert await witness.seen() is None
        await witness.note(Seen(epoch=3, last=40))
        assert await Witness(backend, "here", "mesh").seen() == Seen(epoch=3, last=40)
        assert await Witness(backend, "here", "other").seen() is None
        await witness.forget()
        assert await witness.seen() is None

    run(story())


def test_actors_of_other_schedulers_are_never_ours_whatever_their_names():
    ours, other = (Agents(FakeBackend(), name, "here") for name in ("a", "a:b"))
    mine = [("here", ours.mark("x#7")), ("here", ours.mark("ready:g:1"))]
    foreign = [
        ("here", other.mark("x#7")),
        ("here", "schedulemesh:a:b"),  # the supervisor of the other one
        ("here", "schedulemesh:a"),
        ("elsewhere", ours.mark("x#7")),
    ]
    assert ours.unclaimed_actors([*mine, *foreign], set()) == mine
