"""Calls of the backend that fail with what nobody expects: what was begun comes to its end all the same."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import Running
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import Response, decode_answer
from schedulemesh.runtime.agents.endings import Endings
from tests.runtime import life as lives
from tests.runtime import virtual_time
from tests.runtime.fake_backend import Verdict
from tests.runtime.life import CLASS, SOON_S


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


async def fails(life, call):
    """Have the next call of a name fail in an unexpected way."""
    (await life.held.next(call)).let(Verdict.UNEXPECTED)
    life.held.through.add(call)


def submit_run(life, name="a"):
    """A task that runs by itself."""
    agent = AgentSpec(
        name=name, pool_name="p", resources=parse_resources({"cpu": 1}), class_key=key_of(CLASS)
    )
    task = TaskSpec(task_id=f"t-{name}", pool_name="p", run="train")
    submitted = TaskSubmitted(agent=agent, task=task, request_id=f"r-{name}", queue=True)
    return life.ask(SubmitTask(submission=submitted, blobs={key_of(CLASS): CLASS}))


def test_an_ending_that_fails_is_tried_again_for_everybody_who_waits(caplog):
    async def story():
        endings, tries = Endings(), []

        async def end():
            tries.append(None)
            await asyncio.sleep(1.0)  # virtual time
            if len(tries) < 3:
                raise ZeroDivisionError

        waiting = [asyncio.ensure_future(endings.once(("a", 1), end)) for _ in range(2)]
        await asyncio.gather(*waiting)
        assert len(tries) == 3
        assert ("a", 1) not in endings

    virtual_time.run(story())
    assert "a has not been ended; next attempt in 0.5 s" in caplog.text


@pytest.mark.parametrize("call", ["actor_ended", "terminate"])
def test_an_agent_ends_though_a_step_of_its_end_fails(lived, call):
    async def story(life):
        await life.submit("a", cpu=4)
        life.hold(call)
        deleted = life.ask(DeleteAgent(agent_name="a", request_id="d"))
        await fails(life, call)
        await asyncio.wait_for(deleted, 60.0)
        assert not life.backend.living()
        encoded, _handles = await life.submit("b", cpu=4)
        answer = decode_answer(encoded, Response)
        assert isinstance(answer.outcome, Accepted), "what it held is free"

    lived(story)


def test_the_creation_of_a_group_that_fails_is_answered(lived):
    async def story(life):
        life.backend.full.add("n")  # it is looked at again until it is placed
        life.hold("group")
        submitted = life.submit("a", pool="g", cpu=1)
        await fails(life, "group")
        answer = decode_answer(await asyncio.wait_for(submitted, 60.0), Response)
        assert isinstance(answer.outcome, Refused)
        assert not life.running.reactor.state.groups.by_id
        assert not life.backend.by_id

    lived(story)


def test_a_group_whose_removal_fails_is_removed(lived):
    async def story(life):
        await life.submit("a", pool="g", cpu=1)
        life.hold("remove_group")
        request = DeleteAgent(agent_name="a", destroy_group=True, request_id="d")
        deleted = life.ask(request)
        await fails(life, "remove_group")
        await asyncio.wait_for(deleted, 60.0)
        await asyncio.sleep(SOON_S)  # virtual time
        assert not life.running.reactor.state.groups.by_id

    lived(story)


def test_a_run_whose_call_fails_is_reported_all_the_same(lived):
    async def story(life):
        life.hold("run_task")
        await submit_run(life)
        await fails(life, "run_task")
        await asyncio.sleep(SOON_S)  # virtual time
        assert not life.running.reactor.state.agents
        assert not len(life.running.reactor.state.running)

    lived(story)


def test_an_agent_is_ended_by_its_eviction_though_a_step_before_fails(lived, monkeypatch):
    async def story(life):
        life.hold("run_task")
        await submit_run(life)
        await life.held.next("run_task")

        async def save_and_cancel(order):
            raise ZeroDivisionError

        monkeypatch.setattr(life.running.executor, "_save_and_cancel", save_and_cancel)
        request = PreemptTask(task_id="t-a", agent_name=None, request_id="e")
        await asyncio.wait_for(life.ask(request), 60.0)
        assert not life.backend.living()
        assert not life.running.reactor.state.agents

    lived(story)


def test_a_supervisor_that_nobody_asks_recovers_though_its_first_attempt_fails(lived):
    async def story(life):
        await life.submit("a", cpu=1)
        life.hold("groups")
        recovered = asyncio.ensure_future(life.crash())
        await life.held.next("groups")
        recovering, first_attempt = life.service.recover(), life.service._recovery
        recovering = asyncio.ensure_future(recovering)
        await asyncio.sleep(0)
        await fails(life, "groups")
        await asyncio.wait_for(recovering, 60.0)
        assert first_attempt.exception() is not None
        await asyncio.wait({recovered})
        assert isinstance(life.running.reactor.state.agents["a"].phase, Running)

    lived(story)
