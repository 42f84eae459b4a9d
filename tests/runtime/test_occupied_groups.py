"""Placement groups in which something of others cannot be ended are given to nobody: they are removed, and a
lease gets a new one.
"""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import Response, decode_answer
from schedulemesh.store.sql import SqlJournal
from tests.engine.builders import Mesh
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import Verdict
from tests.runtime.test_leases import TWO, HeldLooks, Scene

CLASS = b"class"


async def submit_agent(scene, name):
    """The outcome of the submission of an agent of two bundles."""
    submission = msgspec.structs.replace(
        Mesh().submission(name, bundles=TWO, class_key=key_of(CLASS)), request_id=f"submit {name}"
    )
    request = SubmitTask(submission=submission, blobs={key_of(CLASS): CLASS})
    return decode_answer(await scene.ask(request), Response).outcome


async def occupied(scene):
    """The id in Ray of a free group in which an actor of others runs that does not end."""
    await scene.pool(GroupsSpec(max_dynamic=1))
    ray_id = (await scene.lease("first")).group.ray_id
    await scene.release("first")
    scene.uses(ray_id, "stays")
    scene.backend.undying.add("stays")
    return ray_id


def test_an_agent_does_not_get_a_group_that_cannot_be_vacated(tmp_path):
    async def story(scene):
        ray_id = await occupied(scene)
        outcome = await submit_agent(scene, "second")
        assert isinstance(outcome, Refused), outcome
        assert outcome.reason is Reason.CLUSTER_OUT_OF_RESOURCES
        assert "others run in its placement group" in outcome.error
        assert ray_id not in scene.backend.by_id

    Scene(tmp_path).play(story)


def test_a_lease_gets_a_new_group_in_place_of_one_in_which_others_run(tmp_path):
    async def story(scene):
        ray_id = await occupied(scene)
        second = await scene.lease("second")
        assert isinstance(second.outcome, Accepted), second.outcome
        assert list(scene.backend.by_id) == [second.group.ray_id] != [ray_id]
        assert await scene.backend.members(second.group.ray_id) == []

    Scene(tmp_path).play(story)


@pytest.mark.parametrize("deleted_after_s", [1.0, 4.9])
@pytest.mark.parametrize("next_is_lease", [False, True])
def test_a_start_whose_agent_has_ended_leaves_the_group_to_who_has_it_now(
    tmp_path, deleted_after_s, next_is_lease
):
    async def story(scene):
        ray_id = await occupied(scene)
        start = asyncio.ensure_future(submit_agent(scene, "ended"))
        await asyncio.sleep(deleted_after_s)  # virtual time: within the 5 s in which it is vacated
        scene.backend.foreign.clear()
        await scene.ask(DeleteAgent(agent_name="ended"))
        if next_is_lease:
            await scene.lease("next")
            scene.uses(ray_id, "theirs")
        else:
            await submit_agent(scene, "next")
        await asyncio.sleep(10.0)  # virtual time
        await start
        assert len(await scene.backend.members(ray_id)) == 1
        assert list(scene.backend.by_id) == [ray_id]

    Scene(tmp_path).play(story)


def held_journal(may_write):
    """Journals that write nothing until they may."""

    class HeldJournal(SqlJournal):
        def append(self, *facts_and_blobs, **options):
            may_write.wait()
            return super().append(*facts_and_blobs, **options)

    return HeldJournal


@pytest.mark.parametrize("answer", [Verdict.DONE, Verdict.REFUSED])
def test_who_is_in_the_group_of_an_agent_is_asked_while_its_start_is_written(tmp_path, answer):
    may_write = threading.Event()
    may_write.set()

    async def story():
        scene = Scene(tmp_path)
        scene.service = supervisor(scene.backend, scene.file, opened=held_journal(may_write))
        await scene.free_group()
        scene.backend.control = looks = HeldLooks()
        may_write.clear()
        starting = asyncio.ensure_future(submit_agent(scene, "second"))
        look = await looks.next("members")
        assert not scene.backend.actors
        look.let(answer)
        may_write.set()
        outcome = await starting
        assert isinstance(outcome, Accepted if answer is Verdict.DONE else Refused), outcome
        assert looks.pending == []
        await scene.die()

    try:
        asyncio.run(asyncio.wait_for(story(), 30.0))
    finally:
        may_write.set()


def test_an_actor_that_is_in_the_group_when_its_start_is_decided_is_ended_before_it(tmp_path):
    async def story(scene):
        ray_id = await scene.free_group()
        scene.uses(ray_id)
        assert isinstance(await submit_agent(scene, "second"), Accepted)
        assert scene.backend.ended_members == {"x"}

    Scene(tmp_path).play(story)
