"""A client that lists very many tasks does not look for garbage meanwhile."""

from __future__ import annotations

import gc

import pytest

from schedulemesh.domain.task import TaskSpec
from schedulemesh.protocol.answers import QueueListed, QueueRow
from tests.core.test_group_calls import Calls

COUNT = 5_000


def waiting(number):
    return QueueRow(
        task=TaskSpec(task_id=f"t{number}", pool_name="p"),
        agent_name=f"a{number}",
        position=number,
        waiting_s=1.0,
        queued_at=1.0,
        arrived_at=1.0,
    )


@pytest.fixture
def collections():
    """The collections of garbage that were begun."""
    begun = []

    def note(phase, _info):
        if phase == "start":
            begun.append(phase)

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_looked_for_while_rows_are_made(collections, enabled):
    calls = Calls(QueueListed(rows=[waiting(number) for number in range(COUNT)], total=COUNT))
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        collections.clear()
        tasks = calls.list_queue()["tasks"]
        # One before and one after may be due; each of the rows has three dicts.
        assert len(collections) <= 2
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert [task["task_id"] for task in tasks] == [f"t{number}" for number in range(COUNT)]
