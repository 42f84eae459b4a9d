"""An agent whose process is known to be dead has no handle, though it is still listed as running."""

from __future__ import annotations

import pytest

from schedulemesh.core.worker_groups import members as module
from schedulemesh.core.worker_groups.members import Member, running_again
from schedulemesh.core.worker_groups.starting import all_or_none
from schedulemesh.errors import GroupRefusedError


class Scheduler:
    """Lists one agent that runs, whose handle is the next of these at each look."""

    def __init__(self, *handles):
        self.handles = list(handles)
        self.ended = []

    def wait(self, task_ids, timeout_s, state):
        return {"success": True, "tasks": [{"task_id": t, "state": "running"} for t in task_ids]}

    def list_agents(self):
        handle = self.handles.pop(0)
        return {"agents": [{"name": "a", "state": "running", "handle": handle}]}

    def cancel_tasks(self, task_ids):
        self.ended += task_ids

    def delete_agent(self, name):
        self.ended.append(name)


def started(handle):
    return {"success": True, "agent": {"name": "a", "handle": handle}}


def test_a_member_without_a_handle_does_not_run_again_yet(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_answer", lambda handles, _until: asked.append(handles) or True)
    member = Member(group="g", rank=0, agent="a", task="t", handle="the dead one")
    assert running_again(Scheduler(None, "new"), [member], 60.0) == ["new"]
    assert asked == [["new"]]


def test_a_group_of_which_one_has_ended_again_is_not_started():
    scheduler = Scheduler()
    answers = [started("one"), started(None)]
    with pytest.raises(GroupRefusedError, match="agent b: it has ended or was evicted") as refused:
        all_or_none(scheduler, "g", ["a", "b"], answers.__getitem__)
    assert refused.value.answer == answers[1]
    assert sorted(scheduler.ended) == ["a", "a", "b", "b"]


def test_a_group_has_the_handles_of_all():
    assert all_or_none(Scheduler(), "g", ["a", "b"], [started(1), started(2)].__getitem__) == [1, 2]
