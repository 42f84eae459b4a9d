"""Orphans: what a journal that was put back does not know is kept, listed, and ended only when asked."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.core.backend.ray_groups import GroupView
from schedulemesh.engine.state.groups import GroupBook
from schedulemesh.runtime.agent_registry import Agents
from schedulemesh.runtime.orphans import Orphans
from schedulemesh.runtime.pg_manager import Groups
from schedulemesh.runtime.witness import Seen, Witness
from schedulemesh.store.journal import MemoryJournal
from tests.core.fake_ray import FakeRay

A, B, WARM = (("here", f"schedulemesh:mesh:{name}") for name in ("a#7", "b#12", "ready-x"))


class NamedActors(FakeRay):
    """Actors are their names; killed ones are gone."""

    def __init__(self):
        super().__init__()
        self.living = {A, B, WARM, ("here", "a user's"), ("elsewhere", "schedulemesh:mesh:c#99")}

    def find_actor(self, name, namespace):
        return (namespace, name) if (namespace, name) in self.living else None

    def kill_actor(self, handle):
        self.living.discard(handle)

    async def call(self, handle, method, *args):
        return None


class Life:
    """One life of a supervisor, as far as orphans are concerned."""

    def __init__(self, ray_api, journal):
        self.agents = Agents(ray_api, "mesh", "here")
        self.groups = Groups(ray_api, "mesh", "here")
        self.orphans = Orphans(ray_api, self.agents, self.groups, journal)
        self._ray = ray_api

    async def begin(self, *, rolled_back, claimed=()):
        """Those that may be ended."""
        unclaimed = self.agents.unclaimed_actors(self._ray.living, set(claimed))
        ended = await self.orphans.take(unclaimed, rolled_back=rolled_back)
        await self.groups.recover(GroupBook(), keep_all=rolled_back)
        await self.orphans.note()
        return set(ended)


@pytest.fixture
def ray_api():
    return NamedActors()


def run(story):
    asyncio.run(asyncio.wait_for(story, 10.0))


def test_with_its_own_journal_nothing_is_an_orphan(ray_api):
    async def story():
        life = Life(ray_api, MemoryJournal())
        assert await life.begin(rolled_back=False, claimed=[A]) == {B, WARM}
        assert life.agents.orphans == set()

    run(story())


def test_with_one_that_was_put_back_all_unknown_is_kept_also_by_later_lives(ray_api):
    async def story():
        journal = MemoryJournal()
        mark = "schedulemesh:mesh@here:group:p-pg-4"
        ray_api.by_id["1"] = GroupView(ray_id="1", name=mark, state="CREATED", node_ids=("n",))
        life = Life(ray_api, journal)
        assert await life.begin(rolled_back=True, claimed=[A]) == set()
        assert life.agents.orphans == {B, WARM}
        assert life.groups.orphans == {"p-pg-4"}
        later = Life(ray_api, journal)
        new = ("here", "schedulemesh:mesh:new#1000001")
        ray_api.living.add(new)
        assert await later.begin(rolled_back=False, claimed=[A]) == {new}
        assert later.agents.orphans == {B, WARM}
        assert later.groups.orphans == {"p-pg-4"}
        assert await later.orphans.end([B[1], "unknown"]) == [B[1]]
        assert "1" in ray_api.by_id
        assert await later.orphans.end() == [WARM[1]]
        assert ray_api.by_id == {}
        last = Life(ray_api, journal)
        assert await last.begin(rolled_back=False, claimed=[A, new]) == set()
        assert (last.agents.orphans, last.groups.orphans) == (set(), set())
        assert A in ray_api.living

    run(story())


def test_one_that_ends_by_itself_is_forgotten(ray_api):
    async def story():
        life = Life(ray_api, MemoryJournal())
        await life.begin(rolled_back=True)
        ray_api.living.discard(A)
        life.orphans.forget_dead(ray_api.living)
        assert life.agents.orphans == {B, WARM}
        assert life.agents.orphan_of("b") == B[1]
        assert life.agents.orphan_of("a") is None

    run(story())


def test_the_newest_incarnation_is_read_from_names_with_our_mark(ray_api):
    agents = Agents(ray_api, "mesh", "here")
    assert agents.newest_incarnation(ray_api.living) == 12
    assert agents.newest_incarnation(set()) == 0


def test_the_witness_knows_what_was_noted_until_it_forgets(ray_api):
    witness = Witness(ray_api, "here", "mesh")
    assert witness.seen() is None
    witness.note(Seen(epoch=3, last=40))
    assert Witness(ray_api, "here", "mesh").seen() == Seen(epoch=3, last=40)
    assert Witness(ray_api, "here", "other").seen() is None
    witness.forget()
    assert witness.seen() is None
