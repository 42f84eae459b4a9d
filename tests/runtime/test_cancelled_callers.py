"""A change is carried out to its end, also where its caller goes away after it was decided.

Ray cancels the calls of a task that is cancelled, so a caller may go away in any round of the event loop.
"""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.audit import QueryAudit
from schedulemesh.api.nodes import CordonNode
from schedulemesh.api.tasks import CancelTasks, RegisterTask
from schedulemesh.domain.task import TaskSpec
from schedulemesh.protocol.answers import Listed, decode_answer
from tests.runtime import life as lives
from tests.runtime.test_leases import HeldLooks, Scene

#: Rounds of the event loop in which every part of a change has begun.
ROUNDS = 12


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


async def go_away(asked, rounds):
    """The caller of a request goes away after so many rounds of the event loop."""
    for _ in range(rounds):
        await asyncio.sleep(0)  # a round of the event loop
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


def test_the_group_of_a_lease_is_vacated_though_its_caller_goes_away(tmp_path):
    async def story(scene):
        ray_id = await scene.free_group()
        scene.uses(ray_id)
        scene.backend.control = HeldLooks()
        leasing = asyncio.ensure_future(scene.lease("second"))
        look = await scene.backend.control.next("members")
        await asyncio.sleep(1.0)  # virtual time: its start is durable
        await go_away(leasing, 0)
        scene.backend.control.through.add("members")
        look.let()
        await asyncio.sleep(1.0)  # virtual time
        assert scene.state.running.by_id.keys() == {"second"}
        assert ray_id in scene.backend.removed

    Scene(tmp_path).play(story)


@pytest.mark.parametrize("rounds", range(1, ROUNDS))
def test_a_change_has_a_record_with_its_outcome_though_its_caller_goes_away(lived, rounds):
    async def story(life):
        await go_away(life.ask(CordonNode(node_id="n", cordoned=True)), rounds)
        await asyncio.sleep(1.0)  # virtual time
        records = decode_answer(await life.ask(QueryAudit(call="cordon_node")), Listed).rows
        assert [record["outcome"] for record in records] == ["done"]

    lived(story)


@pytest.mark.parametrize("rounds", [1, 4, 7])
def test_all_tasks_of_a_request_are_cancelled_though_its_caller_goes_away(lived, rounds):
    async def story(life):
        names = [f"t{number}" for number in range(60)]
        for name in names:
            task = TaskSpec(task_id=name, pool_name="p", priority=1.0)
            await life.ask(RegisterTask(task=task, agent_name="unknown"))
        assert len(life.running.reactor.state.running) == 60
        await go_away(life.ask(CancelTasks(task_ids=tuple(names))), rounds)
        await asyncio.sleep(1.0)  # virtual time
        assert not len(life.running.reactor.state.running)

    lived(story)
