"""``restarted`` names what runs again, not what was only tried."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import Unplaced
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Done, Refused
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import Agent, Running, Starting, Submission
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.runtime.services.restarts import with_real_restarts


@pytest.fixture
def state():
    """A book on which the tasks ``a`` and ``b`` are being started again."""
    made = MeshState()
    for name in ("a", "b"):
        task = TaskSpec(task_id=name, pool_name="p", priority=1.0)
        made.running.add(RunningTask(spec=task, agent_name=name, started_at=0.0, resources=NOTHING))
        spec = AgentSpec(name=name, pool_name="p", resources=NOTHING)
        made.agents[name] = Agent(
            spec=spec,
            incarnation=1,
            phase=Starting(submission=Submission()),
            place=Unplaced(),
            admitted_at=0.0,
        )
    return made


def refused(*restarted):
    return Refused(
        reason=Reason.AGENT_START_FAILED, error_text="no", restarted=restarted, not_restarted=("c",)
    )


def told(state, outcome, meanwhile=lambda: None):
    async def story():
        waiting = asyncio.ensure_future(with_real_restarts(SimpleNamespace(state=state), outcome))
        await asyncio.sleep(0)
        meanwhile()
        return await waiting

    return asyncio.run(asyncio.wait_for(story(), 10.0))


def test_the_outcome_follows_when_each_victim_runs_or_has_failed(state):
    def meanwhile():
        state.agents["a"].enter(Running(started_at=0.0))
        state.running.remove("b")
        del state.agents["b"]

    answer = told(state, refused("a", "b"), meanwhile)
    assert (answer.restarted, answer.not_restarted) == (("a",), ("c", "b"))


def test_a_victim_that_waits_in_the_queue_is_neither_restarted_nor_ended(state):
    """``a`` had joined the queue and has started from there; ``b`` joins it while it is being started."""

    def meanwhile():
        state.agents["a"].enter(Running(started_at=0.0))
        task = state.running.by_id["b"].spec
        agent = state.agents.pop("b").spec
        state.running.remove("b")
        state.evolve(
            TaskQueued(
                submission=TaskSubmitted(agent=agent, task=task, queue=True), at=0.0, number=1
            )
        )

    outcome = msgspec.structs.replace(refused("b"), requeued=("a",))
    answer = told(state, outcome, meanwhile)
    assert (answer.restarted, answer.requeued, answer.not_restarted) == (("a",), ("b",), ("c",))


def test_what_does_not_start_in_time_is_not_restarted(state):
    state.policy = SimpleNamespace(start_timeout=0.02)
    answer = told(state, refused("a", "b"))
    assert (answer.restarted, answer.not_restarted) == ((), ("c", "a", "b"))


@pytest.mark.parametrize("outcome", [Done(), refused()])
def test_other_outcomes_are_as_they_were(state, outcome):
    assert told(state, outcome) is outcome
