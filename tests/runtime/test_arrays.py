"""What a supervisor says of an array and its members."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.api.arrays import GetArray
from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.arrays import MAX_INDEX
from schedulemesh.protocol.agents import key_of
from tests.runtime.composition import InThread
from tests.server.work import CLASS, CPU, ask, submission


@pytest.fixture
def mesh(tmp_path):
    """A supervisor with a pool and no node."""
    running = InThread(tmp_path / "j.sqlite")
    ask(running, EnsurePool(name="p", resources=CPU))
    yield running
    running.close()


def test_members_are_listed_in_pages_up_to_the_largest_index(mesh):
    made = submission("a")
    task = msgspec.structs.replace(made.task, array=f"5,2000000,{MAX_INDEX}", run="go")
    array = msgspec.structs.replace(made, task=task)
    ask(mesh, SubmitTask(submission=array, blobs={key_of(CLASS): CLASS}))
    pages, after = [], None
    while not pages or after is not None:
        facts = ask(mesh, GetArray(task_id="a", after=after, limit=1)).facts
        pages += [row["array_index"] for row in facts["members"]]
        after = facts["next"]
    assert pages == [5, 2_000_000, MAX_INDEX]
