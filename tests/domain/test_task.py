"""What a task is to its callers."""

from __future__ import annotations

from schedulemesh.domain.task import DEFAULT_PRIORITY, TaskSpec, TaskState


def test_equal_specs_are_the_same_request():
    assert TaskSpec(task_id="t", pool_name="p") == TaskSpec(
        task_id="t", pool_name="p", priority=DEFAULT_PRIORITY, labels={}
    )
    assert TaskSpec(task_id="t", pool_name="p") != TaskSpec(task_id="t", pool_name="q")


def test_a_preserver_is_given_plain_data():
    state = TaskState(task_id="t", agent_name="a", pool_name="p", priority=5.0, labels={})
    assert (state.payload, state.progress, state.last_metrics) == (None, None, {})
