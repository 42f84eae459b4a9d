"""How the runtime learns how processes died, with and without a supervisor at that time."""

from __future__ import annotations

import asyncio
import functools

import msgspec
import pytest

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.agent import AgentSpec, Death
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import Response, decode_answer
from schedulemesh.runtime.backend import NodeView
from tests.runtime import life as lives
from tests.runtime.fake_backend import Verdict
from tests.runtime.life import CLASS, SOON_S

EXITED = Death(how="exited with code 3")


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


def submit(life, name="t", *, queue=False, **task):
    agent = AgentSpec(
        name=name,
        pool_name="p",
        resources=parse_resources({"cpu": 1}),
        class_key=key_of(CLASS),
    )
    stimulus = TaskSubmitted(
        agent=agent,
        task=TaskSpec(task_id=name, pool_name="p", **task),
        request_id=f"first-{name}",
        choose_node=True,
        queue=queue,
    )
    return life.ask(SubmitTask(submission=stimulus, blobs={key_of(CLASS): CLASS}))


def dies(life, death=EXITED):
    (actor,) = [actor for actor in life.backend.actors if actor.alive]
    actor.alive = False
    life.backend.deaths[actor.request.name] = death


def ended(life, name="t"):
    return life.running.reactor.state.ended[name]


def test_the_record_says_how_a_process_died(lived, caplog):
    async def story(life):
        await submit(life)
        dies(life)
        await asyncio.sleep(SOON_S)  # virtual time
        assert str(ended(life).error) == "the process of agent 't' exited with code 3"
        assert "agent t: its process exited with code 3" in caplog.text

    lived(story)


def test_a_node_that_was_lost_is_named_by_its_host(lived):
    async def story(life):
        (view,) = life.backend.free
        half = parse_resources({"cpu": 0.5})
        other = NodeView(node_id="other", total=half, free=half, labels={})
        life.backend.free = [msgspec.structs.replace(view, host="gpu-17"), other]
        await asyncio.sleep(SOON_S)  # virtual time
        await submit(life)
        (actor,) = life.backend.actors
        life.backend.free = [other]
        actor.alive = False
        await asyncio.sleep(SOON_S)  # virtual time
        assert str(ended(life).error) == "node gpu-17 (n) was lost, on which agent 't' ran"

    lived(story)


def test_a_process_that_died_while_there_was_no_supervisor_is_asked_about_afterwards(lived):
    async def story(life):
        await submit(life)
        dies(life)
        await life.crash()
        await asyncio.sleep(SOON_S)  # virtual time
        assert str(ended(life).error) == "the process of agent 't' exited with code 3"

    lived(story)


def test_an_agent_is_ended_also_where_nobody_can_say_how_it_died(lived):
    async def story(life):
        await submit(life)
        life.hold("death_of")
        dies(life)
        (await life.held.next("death_of")).let(Verdict.REFUSED)
        await asyncio.sleep(SOON_S)  # virtual time
        assert "died although nobody ended it" in str(ended(life).error)

    lived(story)


def test_a_start_that_fails_says_how_its_process_died_and_keeps_the_message_apart(lived):
    detail = "pip failed\nERROR: No matching distribution found for x\nTraceback"
    how = "was not started: its runtime environment could not be set up: ERROR: No x"

    async def story(life):
        def fails(actor):
            actor.alive = False
            life.backend.deaths[actor.request.name] = Death(how=how, detail=detail)

        life.backend.start = fails
        answer = decode_answer(await submit(life), Response)
        refused = answer.outcome
        assert refused.error == f"agent 't': its process {how}"
        assert refused.detail == detail

    lived(story)


@pytest.mark.parametrize("lost_node", [True, False])
def test_a_process_that_dies_with_its_node_while_it_starts_is_no_failure_of_the_task(
    lived, lost_node
):
    async def story(life):
        def dies(actor):
            actor.alive = False
            name = actor.request.name
            life.backend.deaths[name] = Death(how="was on node n, which has died")
            if lost_node:
                life.backend.lost_with_node.add(name)
            life.backend.start = starts

        starts, life.backend.start = life.backend.start, dies
        await submit(life, max_retries=3, queue=True)
        await asyncio.sleep(SOON_S)  # virtual time
        attempts = life.running.reactor.state.running.by_id["t"].attempts
        assert (attempts.failures, attempts.number) == ((0, 1) if lost_node else (1, 2))
        assert len(life.backend.actors) == 2

    lived(story)


def test_a_task_that_is_to_fail_out_of_memory_is_not_started_again(lived):
    async def story(life):
        await submit(life, max_retries=3, on_oom="fail")
        dies(life, Death(how="was killed by Ray", out_of_memory=True, memory_mb=12.0))
        await asyncio.sleep(SOON_S)  # virtual time
        assert ended(life).reason == "out_of_memory"
        assert len(life.backend.actors) == 1

    lived(story)
