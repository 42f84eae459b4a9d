"""What does not end keeps no supervisor from beginning to serve, and no agent from starting."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.pools import ListPools
from schedulemesh.protocol.agents import RunOrder
from schedulemesh.runtime.backend import GroupView
from schedulemesh.runtime.groups.manager import REMOVED_S
from tests.runtime import life as lives
from tests.runtime.fake_backend import OWN_NODE

#: Virtual seconds within which a supervisor serves whatever does not end.
SERVES_S = 20.0


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


class Unremovable:
    """Placement groups that Ray does not remove, though it accepts the request."""

    def __init__(self, backend, *ray_ids):
        self.ray_ids = set(ray_ids)
        self._remove, backend._remove = backend._remove, self.remove

    def remove(self, ray_id):
        if ray_id not in self.ray_ids:
            self._remove(ray_id)


async def served(life):
    """A supervisor that begins anew answers in time."""
    await asyncio.wait_for(life.crash(), SERVES_S)
    await asyncio.wait_for(life.ask(ListPools()), 1.0)


def unclaimed(life, name="schedulemesh:mesh:gone#0"):
    """An actor of ours that the journal does not know, on a node of which a process does not end."""
    life.backend.others.add(("space", name))
    life.backend.unkillable[OWN_NODE] = 10**6


def group_of_ours(life, group_id, ray_id):
    life.backend.by_id[ray_id] = GroupView(
        ray_id=ray_id,
        name=f"schedulemesh:mesh@space:group:{group_id}",
        state="CREATED",
        node_ids=("n",),
    )


def test_an_actor_that_nobody_claims_and_that_does_not_end(lived):
    async def story(life):
        unclaimed(life)
        await served(life)
        assert len(life.running.agents.endings) == 1
        life.backend.unkillable.clear()
        await asyncio.sleep(60.0)  # virtual time
        assert not len(life.running.agents.endings)

    lived(story)


@pytest.mark.parametrize("group_id", ["gone", "room:gone#7"])
def test_a_group_that_nobody_knows_and_that_is_not_removed(lived, group_id):
    async def story(life):
        ray_id = "f" * 36
        group_of_ours(life, group_id, ray_id)
        stuck = Unremovable(life.backend, ray_id)
        await served(life)
        await life.submit("new", cpu=1, gpu=1)
        assert life.backend.living()
        stuck.ray_ids.clear()
        await asyncio.sleep(60.0)  # virtual time
        assert ray_id not in life.backend.by_id

    lived(story)


def test_a_group_that_was_lost_and_is_not_removed_is_kept_in_the_state_until_it_is(lived):
    async def story(life):
        await life.submit("old", cpu=1, pool="g")
        await asyncio.sleep(lives.SOON_S)  # virtual time
        (ray_id,) = life.backend.by_id
        (group_id,) = life.running.reactor.state.groups.by_id
        stuck = Unremovable(life.backend, ray_id)
        life.backend.by_id[ray_id] = lives.rescheduling(life.backend.by_id[ray_id])
        await served(life)
        assert group_id in life.running.reactor.state.groups.by_id
        stuck.ray_ids.clear()
        await asyncio.sleep(60.0)  # virtual time
        assert ray_id not in life.backend.by_id
        assert group_id not in life.running.reactor.state.groups.by_id

    lived(story)


def test_a_room_that_is_neither_placed_nor_removed_delays_no_start_for_long(lived):
    async def story(life):
        life.backend.full = {"n"}
        stuck = Unremovable(life.backend, *(f"{number:036x}" for number in range(9)))
        for name in ("first", "second"):
            await asyncio.wait_for(life.submit(name, cpu=1, gpu=1), 3 * REMOVED_S)
        assert len(life.backend.living()) == 2
        stuck.ray_ids.clear()
        await asyncio.sleep(60.0)  # virtual time
        assert not life.backend.by_id

    lived(story)


def test_a_room_that_is_not_removed_delays_no_start_for_long(lived):
    async def story(life):
        await life.submit("first", cpu=1, gpu=1)
        (ray_id,) = life.backend.by_id
        stuck = Unremovable(life.backend, ray_id)
        ended = life.ask(DeleteAgent(agent_name="first"))
        await asyncio.sleep(1.0)  # virtual time
        for name in ("second", "third"):
            await asyncio.wait_for(life.submit(name, cpu=1), 1.0)
        began = asyncio.get_running_loop().time()
        await life.submit("with-gpu", cpu=1, gpu=1)
        assert asyncio.get_running_loop().time() - began < REMOVED_S + 1.0
        began = asyncio.get_running_loop().time()
        await life.ask(DeleteAgent(agent_name="second"))
        await life.submit("another", cpu=1, gpu=1)
        assert asyncio.get_running_loop().time() - began < 1.0
        stuck.ray_ids.clear()
        await ended

    lived(story)


@pytest.mark.parametrize("call", ["find_actor", "deaths_of"])
def test_an_actor_of_which_ray_never_says_anything(lived, call):
    async def story(life):
        await life.submit("dead", cpu=1)
        await life.submit("lives", cpu=1, request="second")
        life.backend.actors[0].alive = False
        life.hold(call)
        await served(life)
        agents = life.running.agents
        if call == "find_actor":
            assert agents.handle("lives", life.incarnation("lives")) is None
            order = RunOrder(task_id="t", method="train", arguments=None, limit_bytes=100)
            run = asyncio.ensure_future(agents.run("lives", life.incarnation("lives"), order))
            await asyncio.sleep(lives.SOON_S)  # virtual time
            assert not run.done()
            life.held.through.add(call)
            for asked in life.held.pending:
                asked.let()
            assert (await run).kept
        assert agents.handle("lives", life.incarnation("lives")) is not None

    lived(story)
