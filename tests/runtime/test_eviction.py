"""Saving a task's state: from the best source that works, and never worse than what is there."""

from __future__ import annotations

import asyncio
import threading

import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import StateNotSaved, StateStored
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.protocol.agents import Result, SavedState, StateTooLargeError, pack
from schedulemesh.runtime import eviction as eviction_module
from schedulemesh.runtime.eviction import Eviction
from schedulemesh.runtime.reported_metrics import ReportedMetrics
from tests.runtime import virtual_time


class DeadAgents:
    """No agent answers."""

    def __init__(self):
        self.metrics = ReportedMetrics()
        self.commands = self

    def can(self, name, incarnation, method):
        return True

    async def execute(self, name, incarnation, kind, timeout_s, **fields):
        return None


class Answering(DeadAgents):
    """The agent answers each command as it is told."""

    def __init__(self, **results):
        super().__init__()
        self.results, self.orders = results, []

    def can(self, name, incarnation, method):
        return method.partition("_")[0] in self.results

    async def execute(self, name, incarnation, kind, timeout_s, until=None, **fields):
        self.orders.append((kind, fields))
        return self.results.get(kind, Result(able=False))


def eviction_after(earlier, stored, agents=None, **more):
    """The eviction of a task whose agent does not answer, or as it is told."""

    async def feed(stimulus, blobs):
        stored.append((stimulus, blobs))

    task = RunningTask(
        spec=TaskSpec(task_id="t", pool_name="p", priority=1.0),
        agent_name="a",
        started_at=0.0,
        resources=NOTHING,
    )
    return Eviction(
        backend=None,
        agents=agents or DeadAgents(),
        policy=PreemptionPolicy(),
        feed=feed,
        task=task,
        processes=("a",),
        incarnation=1,
        preserver=None,
        payload=b"payload",
        earlier=earlier,
        now=2.0,
        **{"limit_bytes": 100_000, **more},
    )


def saved_after(earlier):
    fed = []
    saved = asyncio.run(eviction_after(earlier, fed).save())
    (stored, blobs), (failed, _) = fed
    assert blobs == {stored.state_key: pack(saved)}
    assert not saved.current
    assert failed == StateNotSaved(task_id="t", error=saved.warning)
    return saved


def state(**more):
    task = TaskSpec(task_id="t", pool_name="p", priority=1.0)
    return SavedState(task=task, agent_name="a", saved_at=1.0, **more)


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
        assert told.reason == "save_failed"
        assert "save_state failed" in told.error
        assert stored == []


def test_without_an_earlier_state_the_payload_is_what_is_left():
    for earlier in (None, pack(state(source="payload", payload=b"old"))):
        saved = saved_after(earlier)
        assert (saved.source, saved.state, saved.payload) == ("payload", None, b"payload")
        assert saved.saved_at == 2.0


def test_the_agent_gets_the_limit_of_its_state():
    agents = Answering(save=Result(data=b"state"))
    fed = []
    saved = asyncio.run(eviction_after(None, fed, agents).save())
    ((kind, fields),) = agents.orders
    assert kind == "save"
    rest = len(pack(saved)) - len(b"state")
    assert 100_000 - rest - 1000 < fields["limit_bytes"] < 100_000 - rest
    assert saved.current
    assert [type(stimulus) for stimulus, _ in fed] == [StateStored]


def test_a_state_that_is_too_large_is_reported_and_the_previous_one_kept():
    agents = Answering(save=Result(error="too large", success=False, too_large=True))
    told = asyncio.run(eviction_after(None, [], agents).checkpoint())
    assert told.reason == "state_too_large"
    fed = []
    before = pack(state(source="save_state", state=b"before"))
    saved = asyncio.run(eviction_after(before, fed, agents).save())
    assert (saved.state, saved.current) == (b"before", False)
    assert "too large" in fed[-1][0].error


def test_what_does_not_fit_with_all_that_is_stored_with_it_is_not_kept():
    agents = Answering(save=Result(data=b"x" * 1000))
    fed = []
    eviction = eviction_after(None, fed, agents, limit_bytes=1000)
    with pytest.raises(StateTooLargeError):
        asyncio.run(eviction.save())
    ((stimulus, _),) = fed
    assert isinstance(stimulus, StateNotSaved)
    assert "saved_state_bytes" in stimulus.error
    assert asyncio.run(eviction.checkpoint()).reason == "state_too_large"


def test_the_states_of_a_gang_are_packed_outside_the_loop(monkeypatch):
    packed_in = []
    monkeypatch.setattr(
        eviction_module, "pack", lambda saved: (packed_in.append(threading.get_ident()), b"")[1]
    )
    gang = state(source="save_state", members=(b"x" * 600_000, None, b"x" * 600_000))
    asyncio.run(eviction_module._stored_form(gang))
    assert packed_in != [threading.get_ident()]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (Result(able=False), "the agent's class has no cancel(), so nothing was cancelled"),
        (
            Result(able=False, running=1),
            "the agent's class has no cancel(), so nothing was cancelled; 1 of the agent's methods runs on",
        ),
        (
            Result(error="ValueError: no", success=False, running=2),
            "ValueError: no; 2 of the agent's methods run on",
        ),
    ],
)
def test_a_cancel_without_effect_reports_that_the_method_continues(result, error):
    answered = asyncio.run(eviction_after(None, [], Answering(cancel=result)).cancel())
    assert (answered.cancel_success, answered.error) == (False, error)


def test_a_cancel_that_did_not_return_has_timed_out():
    answered = asyncio.run(eviction_after(None, [], DeadAgents()).cancel())
    assert (answered.cancel_success, answered.runs_on, answered.timed_out) == (False, False, True)
    assert answered.error.startswith("cancel() did not return within")


def test_a_successful_cancel_reports_success():
    agents = Answering(cancel=Result(running=1))
    answered = asyncio.run(eviction_after(None, [], agents).cancel())
    assert (answered.cancel_success, answered.error) == (True, "")


def test_the_notice_to_a_job_waits_for_its_driver_instead_of_for_the_grace():
    agents = Answering(on=Result(), notice=Result())
    eviction = eviction_after(None, [], agents, job=True)
    # As long as the grace, this would run into the limit of the test.
    asyncio.run(asyncio.wait_for(eviction.notice(3600.0), 5.0))
    assert agents.orders == [("notice", {"seconds": 3600.0})]


class Late(Answering):
    """The agent asks for commands only after some seconds, as one that stands still meanwhile."""

    def __init__(self, after_s, **results):
        super().__init__(**results)
        self.after_s = after_s

    async def execute(self, name, incarnation, kind, timeout_s, **fields):
        await asyncio.sleep(min(self.after_s, timeout_s))  # of virtual time
        if self.after_s >= timeout_s:
            return None
        return await super().execute(name, incarnation, kind, timeout_s, **fields)


@pytest.mark.parametrize(
    ("after_s", "grace_s", "told", "lasts_s"),
    [
        (0.0, 0.0, True, 0.0),
        (0.0, 30.0, True, 30.0),
        (0.5, 30.0, True, 30.5),
        (20.0, 30.0, True, 31.0),
        (60.0, 30.0, False, 31.0),
        (60.0, 0.5, False, 1.5),
    ],
)
def test_an_agent_that_stands_still_is_told_as_long_as_there_is_grace(
    after_s, grace_s, told, lasts_s
):
    agents = Late(after_s, on=Result(), notice=Result())

    async def story():
        await eviction_after(None, [], agents).notice(grace_s)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(story()) == pytest.approx(lasts_s)
    assert agents.orders == [("notice", {"seconds": grace_s})] * told
