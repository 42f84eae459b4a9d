"""Pools that are deleted or renamed while somebody is still told of their definition."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.pools import CreatePool, DeletePool, RenamePool
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Done
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import PoolResponse, decode_answer
from tests.runtime import life as lives
from tests.runtime.life import CLASS

ONE = parse_resources({"cpu": 1})
GROUPS = GroupsSpec(reserved=(GroupShape(bundles=(ONE,)),), max_dynamic=1)
ENDS = (
    DeletePool(name="new", drain=True, client="me", request_id="end"),
    RenamePool(name="new", new_name="other", request_id="end"),
)


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


def definition(groups=None):
    spec = PoolSpec(name="new", resources=ONE, groups=groups)
    return CreatePool(spec=spec, request_id="create")


@pytest.mark.parametrize("end", ENDS)
def test_a_definition_that_is_repeated_afterwards_is_answered_as_before(lived, end):
    async def story(life):
        first = decode_answer(await life.ask(definition()), PoolResponse)
        await life.ask(end)
        assert decode_answer(await life.ask(definition()), PoolResponse) == first

    lived(story)


@pytest.mark.parametrize("end", ENDS)
def test_a_definition_whose_groups_are_being_created_is_answered(lived, end):
    async def story(life):
        life.backend.full = {"n"}
        creating = life.ask(definition(GROUPS))
        await asyncio.sleep(1.0)  # virtual time
        await life.ask(end)
        answer = decode_answer(await asyncio.wait_for(creating, 60.0), PoolResponse)
        assert isinstance(answer.outcome, Done)

    lived(story)


def test_all_that_wait_in_a_pool_are_cancelled_at_the_next_look_at_the_cluster(lived):
    async def story(life):
        await life.ask(CreatePool(spec=PoolSpec(name="new", resources=ONE), request_id="create"))
        for n in range(800):
            task = TaskSpec(task_id=f"t{n}", pool_name="new")
            agent = AgentSpec(name=f"t{n}", pool_name="new", resources=ONE, class_key=key_of(CLASS))
            submission = TaskSubmitted(agent=agent, task=task, queue=True, request_id=f"r{n}")
            await life.ask(SubmitTask(submission=submission, blobs={key_of(CLASS): CLASS}))
        assert len(life.running.reactor.state.queue.by_id) > 700
        await life.ask(ENDS[0])
        await asyncio.sleep(5.0)  # virtual time
        assert not life.running.reactor.state.queue.by_id

    lived(story)
