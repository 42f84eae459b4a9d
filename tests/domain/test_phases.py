"""The tables of what may follow what."""

from __future__ import annotations

from schedulemesh.domain import agent
from schedulemesh.domain.task import DEFAULT_PRIORITY, TaskSpec, TaskState


def test_every_phase_has_a_row_and_leads_only_to_phases():
    for phases, table in ((agent.AgentPhase, agent.TRANSITIONS),):
        assert set(table) == set(phases)
        for phase, following in table.items():
            assert set(following) <= set(phases)
            assert phase not in following


def test_an_ending_agent_never_becomes_active_again():
    assert agent.TRANSITIONS[agent.AgentPhase.ENDING] == ()


def test_equal_specs_are_the_same_request():
    assert TaskSpec(task_id="t", pool_name="p") == TaskSpec(
        task_id="t", pool_name="p", priority=DEFAULT_PRIORITY, labels={}
    )
    assert TaskSpec(task_id="t", pool_name="p") != TaskSpec(task_id="t", pool_name="q")


def test_a_preserver_is_given_plain_data():
    state = TaskState(task_id="t", agent_name="a", pool_name="p", priority=5.0, labels={})
    assert (state.payload, state.progress, state.last_metrics) == (None, None, {})
