"""Saving a task's state: from the best source that works, and never worse than what is there."""

from __future__ import annotations

import asyncio

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.protocol.agents import SavedState, pack
from schedulemesh.runtime.eviction import Eviction
from schedulemesh.runtime.reported_metrics import ReportedMetrics


class DeadAgents:
    """No agent answers."""

    def __init__(self):
        self.metrics = ReportedMetrics()

    def can(self, name, incarnation, method):
        return True

    async def order(self, name, incarnation, kind, timeout_s, **fields):
        return None


def eviction_after(earlier, stored):
    """The eviction of a task whose agent does not answer."""

    async def feed(stimulus, blobs):
        stored.append((stimulus, blobs))

    task = RunningTask(
        spec=TaskSpec(task_id="t", pool_name="p", priority=1.0),
        agent_name="a",
        started_at=0.0,
        resources=NOTHING,
    )
    return Eviction(
        ray=None,
        agents=DeadAgents(),
        policy=PreemptionPolicy(),
        feed=feed,
        task=task,
        incarnation=1,
        preserver=None,
        payload=b"payload",
        earlier=earlier,
        now=2.0,
    )


def saved_after(earlier):
    stored = []
    saved = asyncio.run(eviction_after(earlier, stored).save())
    ((stimulus, blobs),) = stored
    assert blobs == {stimulus.state_key: pack(saved)}
    return saved


def state(**more):
    return SavedState(
        task_id="t", agent_name="a", pool_name="p", priority=1.0, saved_at=1.0, **more
    )


def test_a_save_that_fails_keeps_the_state_that_was_saved_before():
    saved = saved_after(pack(state(source="save_state", state=b"state", consistent=False)))
    assert (saved.source, saved.state, saved.saved_at) == ("save_state", b"state", 1.0)
    assert not saved.consistent
    assert "save_state failed" in saved.warning
    assert "saved before" in saved.warning


def test_what_was_saved_before_is_no_checkpoint():
    for earlier in (None, pack(state(source="save_state", state=b"state"))):
        stored = []
        told = asyncio.run(eviction_after(earlier, stored).checkpoint())
        assert "save_state failed" in told
        assert stored == []


def test_without_an_earlier_state_the_payload_is_what_is_left():
    for earlier in (None, pack(state(source="payload", payload=b"old"))):
        saved = saved_after(earlier)
        assert (saved.source, saved.state, saved.payload) == ("payload", None, b"payload")
        assert saved.saved_at == 2.0
