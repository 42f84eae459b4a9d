"""Callers that wait for tasks: nothing is kept of those that have returned."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.tasks import CancelTask, SubmitTask, WaitTasks, WaitUntil
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from tests.runtime import life as lives
from tests.runtime.life import CLASS, SOON_S


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


async def submit(life, name):
    agent = AgentSpec(
        name=name, pool_name="p", resources=parse_resources({"cpu": 1}), class_key=key_of(CLASS)
    )
    task = TaskSpec(task_id=name, pool_name="p")
    submission = TaskSubmitted(agent=agent, task=task, request_id=name, choose_node=True)
    await life.ask(SubmitTask(submission=submission, blobs={key_of(CLASS): CLASS}))


def wait(life, task_id, wait_s=30.0):
    return life.ask(WaitTasks(task_ids=(task_id,), until=WaitUntil.ENDED, enough=1, wait_s=wait_s))


def test_nothing_is_kept_of_callers_who_have_returned_while_another_one_waits(lived):
    async def story(life):
        waits = life.service._requests.tasks._waits
        for name in ("stays", "ends"):
            await submit(life, name)
        wait(life, "stays")
        await life.ask(CancelTask(task_id="ends", request_id="end"))
        await asyncio.sleep(SOON_S)  # virtual time
        assert "ends" not in life.running.reactor.state.agents
        await wait(life, "ends")
        assert waits._on_agent.keys() == waits._waiting.keys() == {"stays"}

    lived(story)


def test_a_caller_whose_agent_is_still_ending_returns_with_its_end(lived):
    async def story(life):
        await submit(life, "ends")
        life.hold("terminate", "actor_ended")
        life.ask(CancelTask(task_id="ends", request_id="end"))
        await asyncio.sleep(0.1)  # virtual time
        waiting = wait(life, "ends")
        await asyncio.sleep(SOON_S)  # virtual time
        assert not waiting.done()
        life.held.through |= lives.CALLS
        for call in list(life.held.pending):
            call.let()
        await asyncio.wait_for(waiting, SOON_S)

    lived(story)
