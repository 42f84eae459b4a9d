"""Callers that wait for tasks: nothing is kept of those that have returned."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.tasks import CancelTask, SubmitMany, SubmitTask, WaitTasks, WaitUntil
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.portions import PortionTurns
from schedulemesh.runtime.services import tasks
from tests.runtime import life as lives
from tests.runtime.composition import InThread
from tests.runtime.life import CLASS, SOON_S
from tests.server.work import ask, submission


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


@pytest.fixture
def mesh(tmp_path):
    """A pool with room for one of 60 tasks."""
    made = InThread(tmp_path / "j.sqlite")
    ask(made, EnsurePool(name="p", resources=parse_resources({"cpu": 1}), labels={}))
    submitted = tuple(submission(f"t{number}") for number in range(60))
    ask(made, SubmitMany(submissions=submitted, blobs={key_of(b"class"): b"class"}))
    yield made
    made.close()


@pytest.mark.parametrize(("count", "portions"), [(60, [25, 50, 60]), (25, [])])
def test_many_tasks_are_looked_at_in_portions_between_which_others_are_served(
    mesh, monkeypatch, count, portions
):
    look, serve_others = tasks.task_status, PortionTurns.serve_others
    looked_at, served_at = [], []

    def noted(state, task_id, causes):
        looked_at.append(task_id)
        return look(state, task_id, causes)

    async def served(turns, took_s):
        served_at.append(len(looked_at))
        await serve_others(turns, took_s)

    monkeypatch.setattr(tasks, "task_status", noted)
    monkeypatch.setattr(PortionTurns, "serve_others", served)
    ids = tuple(f"t{number}" for number in range(count))
    answer = ask(mesh, WaitTasks(task_ids=ids, until=WaitUntil.RUNNING, enough=1, wait_s=0.0))
    assert [row["task_id"] for row in answer.rows] == looked_at == list(ids)
    assert answer.rows[-1]["state"] == "queued"
    assert served_at[: len(portions)] == portions
