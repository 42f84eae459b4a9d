"""Saving a task's state: from the best source that works, and never worse than what is there."""

from __future__ import annotations

import asyncio
import logging
import threading

import msgspec
import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload, JobPayload
from schedulemesh.domain.placement import Unplaced
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import StateNotSaved, StateStored
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Step
from schedulemesh.protocol.agents import CommandResult, StateTooLargeError, key_of, unpack
from schedulemesh.runtime.agents import eviction as eviction_module
from schedulemesh.runtime.agents.eviction import Eviction
from schedulemesh.runtime.agents.reported_metrics import ReportedMetrics
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
        return self.results.get(kind, CommandResult(able=False))


class Books:
    """The reactor of a scheduler with one task ``t`` on an agent ``a``; it notes what is reported."""

    def __init__(self, fed, limit_bytes, job):
        self.fed, self.saved_state_bytes, self.clock = fed, limit_bytes, 2.0
        self.state = MeshState()
        payload = key_of(b"payload")
        task = TaskSpec(task_id="t", pool_name="p", priority=1.0, payload_key=payload)
        self.state.running.add(
            RunningTask(spec=task, agent_name="a", started_at=0.0, resources=NOTHING)
        )
        spec = AgentSpec(
            name="a",
            pool_name="p",
            resources=NOTHING,
            payload=JobPayload() if job else SINGLE_PROCESS,
        )
        self.state.agents["a"] = Agent(
            spec=spec,
            incarnation=1,
            phase=Running(started_at=0.0),
            place=Unplaced(),
            admitted_at=0.0,
        )
        self.blobs = {payload: b"payload"}

    def now(self):
        return self.clock

    async def fetch(self, key):
        return self.blobs.get(key)

    async def report(self, stimulus, blobs):
        self.fed.append((stimulus, blobs))
        return Step()

    step = report


def eviction_after(fed, agents=None, *, limit_bytes=100_000, job=False):
    """The eviction of a task whose agent does not answer, or as it is told."""
    return Eviction(None, agents or DeadAgents(), Books(fed, limit_bytes, job), "t")


def saved_by(agents, **more):
    """What one save reports."""
    fed = []
    asyncio.run(eviction_after(fed, agents, **more).save())
    ((stimulus, blobs),) = fed
    return stimulus, blobs


def test_where_a_save_fails_nothing_is_written():
    stimulus, blobs = saved_by(DeadAgents())
    assert blobs == {}
    assert stimulus.task_id == "t"
    assert stimulus.error.startswith("save_state failed: no answer within 30 s")


def test_a_save_that_fails_is_no_checkpoint():
    fed = []
    told = asyncio.run(eviction_after(fed).checkpoint())
    assert told.reason == "save_failed"
    assert "save_state failed" in told.error
    assert fed == []


def test_a_class_whose_save_state_returns_none_has_saved_nothing():
    stimulus, blobs = saved_by(Answering(save=CommandResult()))
    assert (stimulus.error, blobs) == ("save_state returned None, so nothing was saved", {})
    told = asyncio.run(eviction_after([], Answering(save=CommandResult())).checkpoint())
    assert told.reason == "save_failed"


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        ((b"state", None), (b"state", None)),
        ((None, b"state"), (None, b"state")),
        ((None, None), ()),
    ],
)
def test_members_of_a_gang_may_have_nothing_to_save(states, kept):
    """Often the first member alone has the state of all."""

    class Members(Answering):
        async def execute(self, name, incarnation, kind, timeout_s, until=None, **fields):
            return CommandResult(data=states[int(name[-1])])

    fed = []
    eviction = eviction_after(fed, Members(save=None))
    agent = eviction._reactor.state.agents["a"]
    agent.spec = msgspec.structs.replace(
        agent.spec, payload=GangPayload(), bundles=(NOTHING, NOTHING)
    )
    asyncio.run(eviction.save())
    ((stimulus, blobs),) = fed
    stored = [unpack(data, SavedState).members for data in blobs.values()]
    assert stored == ([kept] if kept else [])
    assert isinstance(stimulus, StateStored if kept else StateNotSaved)


def test_a_class_without_save_state_keeps_its_payload_which_is_no_saved_work():
    stimulus, blobs = saved_by(Answering())
    saved = unpack(blobs[stimulus.state_key], SavedState)
    assert (saved.source, saved.state, saved.payload) == ("payload", None, b"payload")
    assert not stimulus.restorable


def test_a_state_is_as_old_as_its_saving_and_not_as_the_notice():
    class Slow(Answering):
        async def execute(self, name, incarnation, kind, timeout_s, until=None, **fields):
            books.clock = 40.0 if kind == "save" else 30.0
            return await super().execute(name, incarnation, kind, timeout_s, until, **fields)

    fed = []
    eviction = eviction_after(
        fed, Slow(on=CommandResult(), notice=CommandResult(), save=CommandResult(data=b"state"))
    )
    books = eviction._reactor

    async def story():
        await eviction.notice(0.0)
        await eviction.save()

    asyncio.run(story())
    ((stored, blobs),) = fed
    assert stored.saved_at == unpack(blobs[stored.state_key], SavedState).saved_at == 40.0


def test_the_state_of_a_gang_is_as_old_as_the_first_of_its_members():
    """A save that begins later and ends earlier has newer states of the others, and is kept."""

    class OneLate(Answering):
        async def execute(self, name, incarnation, kind, timeout_s, until=None, **fields):
            if name == "a-1":
                await asyncio.sleep(0)  # its answer comes after that of the other one
            books.clock = {"a-0": 10.0, "a-1": 40.0}[name]
            return await super().execute(name, incarnation, kind, timeout_s, until, **fields)

    fed = []
    eviction = eviction_after(fed, OneLate(save=CommandResult(data=b"state")))
    books = eviction._reactor
    agent = books.state.agents["a"]
    agent.spec = msgspec.structs.replace(
        agent.spec, payload=GangPayload(), bundles=(NOTHING, NOTHING)
    )
    asyncio.run(eviction.save())
    ((stored, _),) = fed
    assert stored.saved_at == 10.0


def test_a_task_that_has_ended_meanwhile_is_not_saved():
    fed = []
    eviction = eviction_after(fed, Answering(save=CommandResult(data=b"state")))
    eviction._reactor.state.running.remove("t")
    asyncio.run(eviction.save())
    assert asyncio.run(eviction.checkpoint()) is None
    assert fed == []


def test_an_agent_whose_task_ends_while_it_is_saved_goes_on_from_its_safe_point():
    agents = Answering()
    eviction = eviction_after([], agents)
    eviction._reactor.state.running.remove("t")
    asyncio.run(eviction.resume())
    assert agents.orders == [("resume", {})]


def test_a_checkpoint_does_not_let_a_task_go_on_whose_eviction_has_begun():
    agents = Answering(resume=CommandResult())
    eviction = eviction_after([], agents)
    eviction._reactor.state.running.enter("t", Preempting(reason=PreemptionReason.DRAINED))
    asyncio.run(eviction.resume())
    assert agents.orders == [], "what it does after its state was saved is done again"


def test_another_incarnation_of_the_agent_gets_no_orders():
    agents = Answering(cancel=CommandResult(), save=CommandResult(data=b"state"))
    eviction = eviction_after([], agents)
    eviction._reactor.state.agents["a"].incarnation = 2
    answered = asyncio.run(eviction.cancel())
    asyncio.run(eviction.resume())
    assert (answered.cancel_success, agents.orders) == (False, [])


def test_the_agent_gets_the_limit_of_its_state():
    agents = Answering(save=CommandResult(data=b"state"))
    fed = []
    asyncio.run(eviction_after(fed, agents).save())
    ((kind, fields),) = agents.orders
    assert kind == "save"
    ((stored, blobs),) = fed
    rest = len(blobs[stored.state_key]) - len(b"state")
    assert 100_000 - rest - 1000 < fields["limit_bytes"] < 100_000 - rest
    assert isinstance(stored, StateStored)
    assert stored.restorable


def test_a_state_that_is_too_large_is_reported_and_nothing_is_written():
    agents = Answering(save=CommandResult(error="too large", success=False, too_large=True))
    told = asyncio.run(eviction_after([], agents).checkpoint())
    assert told.reason == "state_too_large"
    stimulus, blobs = saved_by(agents)
    assert "too large" in stimulus.error
    assert blobs == {}


def test_what_does_not_fit_with_all_that_is_stored_with_it_is_not_kept():
    agents = Answering(save=CommandResult(data=b"x" * 1000))
    fed = []
    eviction = eviction_after(fed, agents, limit_bytes=1000)
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
    gang = SavedState(
        task=TaskSpec(task_id="t"),
        agent_name="a",
        source="save_state",
        saved_at=1.0,
        members=(b"x" * 600_000, None, b"x" * 600_000),
    )
    asyncio.run(eviction_module._stored_form(gang))
    assert packed_in != [threading.get_ident()]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (CommandResult(able=False), "the agent's class has no cancel(), so nothing was cancelled"),
        (
            CommandResult(able=False, running=1),
            "the agent's class has no cancel(), so nothing was cancelled; 1 of the agent's methods runs on",
        ),
        (
            CommandResult(error="ValueError: no", success=False, running=2),
            "ValueError: no; 2 of the agent's methods run on",
        ),
    ],
)
def test_a_cancel_without_effect_reports_that_the_method_continues(result, error):
    answered = asyncio.run(eviction_after([], Answering(cancel=result)).cancel())
    assert (answered.cancel_success, answered.error) == (False, error)


@pytest.mark.parametrize(
    ("result", "logged"),
    [
        (CommandResult(able=False), [logging.WARNING]),
        (CommandResult(success=False), [logging.WARNING]),
        (None, [logging.WARNING]),
        (CommandResult(running=1), []),
    ],
)
def test_a_failed_cancel_is_a_warning_in_the_log(result, logged, caplog):
    caplog.set_level(logging.DEBUG, logger=eviction_module.__name__)
    agents = DeadAgents() if result is None else Answering(cancel=result)
    answered = asyncio.run(eviction_after([], agents).cancel())
    records = [record for record in caplog.records if "was not cancelled" in record.message]
    assert [record.levelno for record in records] == logged
    assert all("task t was not cancelled" in record.message for record in records)
    assert answered.cancel_success == (not logged)


def test_a_cancel_that_did_not_return_has_timed_out():
    answered = asyncio.run(eviction_after([], DeadAgents()).cancel())
    assert (answered.cancel_success, answered.runs_on, answered.timed_out) == (False, False, True)
    assert answered.error.startswith("cancel() did not return within")


def test_a_successful_cancel_reports_success():
    agents = Answering(cancel=CommandResult(running=1))
    answered = asyncio.run(eviction_after([], agents).cancel())
    assert (answered.cancel_success, answered.error) == (True, "")


def test_the_notice_to_a_job_waits_for_its_driver_instead_of_for_the_grace():
    agents = Answering(on=CommandResult(), notice=CommandResult())
    eviction = eviction_after([], agents, job=True)
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
    agents = Late(after_s, on=CommandResult(), notice=CommandResult())

    async def story():
        await eviction_after([], agents).notice(grace_s)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(story()) == pytest.approx(lasts_s)
    assert agents.orders == [("notice", {"seconds": grace_s})] * told
