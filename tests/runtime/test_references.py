"""Object references of submissions: held while an agent can be built from them, and not longer."""

from __future__ import annotations

import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import Unplaced
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.facts import TaskPreempted
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import Agent, Preempted, Starting, Submission
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.agents import references as module
from schedulemesh.runtime.agents.references import NO_REFS, References

REFS = (["whole"], ["nested"])


@pytest.fixture
def state():
    return MeshState()


def submission(name="a", request_id="r"):
    agent = AgentSpec(name=name, pool_name="p", resources=NOTHING, references=2)
    return TaskSubmitted(agent=agent, request_id=request_id)


def admit(state, spec, incarnation=1):
    state.agents[spec.name] = Agent(
        spec=spec,
        incarnation=incarnation,
        phase=Starting(submission=Submission()),
        place=Unplaced(),
        admitted_at=0.0,
    )


def preempt(state, spec):
    del state.agents[spec.name]
    fact = TaskPreempted(
        task=TaskSpec(task_id=f"t-{spec.name}", pool_name="p", priority=1.0),
        agent_name=spec.name,
        reason=PreemptionReason.MANUAL,
        at=1.0,
        agent=spec,
    )
    state.preempted[fact.task.task_id] = Preempted(fact=fact)


def submitted(references, state, *, accepted=True, refs=REFS, **who):
    """Decide a submission; the agent's spec."""
    spec = references.given_with(submission(**who), refs).agent
    with references.held_for(spec, refs):
        references.release_unused(state)
        assert references.references_of(spec) == refs, "they are there while it is decided"
        if accepted:
            admit(state, spec)
    references.release_unused(state)
    return spec


def test_references_of_an_agent_are_held_as_long_as_it_exists(state):
    references = References()
    spec = submitted(references, state)
    assert references.references_of(spec) == REFS
    del state.agents["a"]
    references.release_unused(state)
    assert (references.references_of(spec), len(references)) == (NO_REFS, 0)


def test_those_of_a_refusal_or_dry_run_are_released(state):
    references = References()
    for _ in range(3):
        submitted(references, state, accepted=False)
    assert len(references) == 0


def test_a_duplicate_that_is_refused_does_not_touch_those_of_the_living_agent(state):
    references = References()
    living = submitted(references, state)
    other = submitted(references, state, accepted=False, refs=(["other"], []), request_id="s")
    assert references.references_of(living) == REFS
    assert references.references_of(other) == NO_REFS
    assert len(references) == 1


def test_a_request_that_is_sent_again_keeps_those_of_its_agent(state):
    references = References()
    spec = submitted(references, state)
    with references.held_for(spec, REFS):
        submitted(references, state, accepted=False)
        references.release_unused(state)
        assert references.references_of(spec) == REFS
    references.release_unused(state)
    assert references.references_of(spec) == REFS


def test_a_preempted_agent_is_built_again_from_them(state):
    references = References()
    spec = submitted(references, state)
    preempt(state, spec)
    references.release_unused(state)
    assert references.references_of(spec) == REFS
    state.preempted.clear()
    references.release_unused(state)
    assert len(references) == 0


def test_those_of_so_many_preempted_agents_are_held(state, monkeypatch):
    monkeypatch.setattr(module, "_ENDED", 2)
    references = References()
    specs = [submitted(references, state, name=f"a{n}", request_id=f"r{n}") for n in range(4)]
    for spec in specs:
        preempt(state, spec)
    references.release_unused(state)
    assert [references.references_of(spec) == REFS for spec in specs] == [False, False, True, True]


def test_an_agent_without_references_has_none(state):
    references = References()
    spec = submitted(references, state, refs=NO_REFS)
    assert (spec.references_id, references.references_of(spec)) == ("", NO_REFS)
