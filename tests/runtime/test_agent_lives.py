"""The life of one agent's process: it is started, heard and ended once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest

from schedulemesh.api.agents import DeleteAgent, EnsureAgentHealth
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.states import GetSavedState, RegisterStateHandlers, SaveTaskState
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskPhase, TaskSpec
from schedulemesh.engine.messages.instructions import EvictAgent, EvictTask
from schedulemesh.engine.messages.stimuli import AgentGone, StateNotSaved, TaskSubmitted
from schedulemesh.engine.transaction import Step
from schedulemesh.protocol.agents import (
    Command,
    CommandResult,
    Handled,
    StartReport,
    key_of,
    pack,
    unpack,
)
from schedulemesh.protocol.answers import Details, SavedBytes, decode_answer
from schedulemesh.runtime.backend import Process
from tests.runtime import life as lives
from tests.runtime.life import SOON_S
from tests.runtime.story import CALLS

ONE = parse_resources({"cpu": 1})


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


def test_an_agent_that_is_deleted_while_its_start_asks_for_room_leaves_no_process(lived):
    async def story(life):
        life.backend.full = {"n"}
        life.hold("nodes")
        life.submit("a", gpu=1)
        await asyncio.sleep(2.0)  # virtual time; after 2.5 s the room is given up
        for call in list(life.held.pending):  # those of the monitor, and of why there is no room
            call.let()
        await asyncio.sleep(0.2)  # virtual time
        assert len(life.held.pending) == 1
        life.ask(DeleteAgent(agent_name="a"))
        await asyncio.sleep(0.1)  # virtual time
        life.held.through |= CALLS
        for call in list(life.held.pending):
            call.let()
        await asyncio.sleep(SOON_S)  # virtual time
        assert life.running.reactor.state.agents == {}
        assert life.backend.living() == set()

    lived(story)


def test_a_start_that_is_cancelled_for_an_owner_is_stopped_and_its_task_waits_again(lived):
    def queued(life, name, pool_name, gpu):
        agent = AgentSpec(
            name=name,
            pool_name=pool_name,
            resources=parse_resources({"gpu": gpu}),
            class_key=key_of(lives.CLASS),
        )
        task = TaskSpec(task_id=name, pool_name=pool_name)
        stimulus = TaskSubmitted(agent=agent, task=task, request_id=name, queue=True)
        return life.ask(SubmitTask(submission=stimulus, blobs={key_of(lives.CLASS): lives.CLASS}))

    async def story(life):
        for name in ("owner", "other"):
            call = EnsurePool(
                name=name, resources=parse_resources({"gpu": 1}), lending={"cohort": "all"}
            )
            await life.ask(call)
        life.hold("agent_report")
        await queued(life, "borrower", "other", 2)
        await life.held.next("agent_report")
        await queued(life, "first", "owner", 1)
        await asyncio.sleep(SOON_S)  # virtual time
        state = life.running.reactor.state
        assert list(state.agents) == ["first"]
        assert list(state.queue.by_id) == ["borrower"]
        assert len(life.backend.living()) == 1
        life.held.through |= CALLS
        for call in list(life.held.pending):
            call.let()
        await asyncio.sleep(SOON_S)  # virtual time
        assert state.running.by_id["first"].phase is TaskPhase.RUNNING
        assert list(state.queue.by_id) == ["borrower"]

    lived(story)


def test_a_start_that_is_reported_for_nobody_is_ended(lived):
    async def story(life):
        life.hold("agent_report")
        life.submit("a", cpu=1)
        report = await life.held.next("agent_report")
        # The state forgets it, as in a step that no instruction follows.
        gone = AgentGone(agent_name="a", incarnation=life.incarnation("a"))
        await life.running.reactor.step(gone)
        report.let()
        await asyncio.sleep(SOON_S)  # virtual time
        assert life.backend.living() == set()

    lived(story)


def test_an_agent_whose_own_name_is_taken_ends_nobody_else(lived):
    async def story(life):
        named = json.dumps({"name": "taken", "namespace": "users"})
        await life.submit("a", cpu=1, options=named)
        await life.submit("b", cpu=1, options=named)
        await asyncio.sleep(SOON_S)  # virtual time
        assert list(life.running.reactor.state.agents) == ["a"]
        assert life.backend.living() == {("users", "taken")}

    lived(story)


def test_an_actor_that_has_the_name_of_one_of_ours_ends_before_its_start_has_failed(lived):
    async def story(life):
        life.backend.others.add(("space", life.running.agents.mark("a#1")))
        assert b"the name is taken" in await life.submit("a", cpu=1)
        assert life.backend.living() == set()

    lived(story)


def test_an_actor_of_ours_that_nobody_claims_is_ended_without_a_restart(lived):
    async def story(life):
        address = ("space", life.running.agents.mark("gone#7"))
        life.backend.others.add(address)
        life.backend.others.add(("space", "somebody's"))
        await asyncio.sleep(SOON_S)  # virtual time
        assert life.backend.living() == {("space", "somebody's")}

    lived(story)


def test_a_process_that_ray_has_started_again_meanwhile_is_not_one_left_behind(lived):
    async def story(life):
        await life.submit("a", cpu=1)
        (cleaner,), (actor,) = life.backend.cleaners, life.backend.actors
        mark = life.backend.process_mark("space", actor.request.name)
        life.hold("actor")
        cleaner.left = {mark: [Process(began=1, pid=actor.pid + 1)]}
        look = await life.held.next("actor")
        actor.pid += 1
        report = pack(StartReport(node_id="n", pid=actor.pid))
        await life.service.agent_restarted("a", life.incarnation("a"), report)
        cleaner.left = {}
        life.held.through.add("actor")
        look.let()
        await asyncio.sleep(SOON_S)  # virtual time
        assert life.running.reactor.state.agents["a"].process.pid == actor.pid
        assert cleaner.killed == []

    lived(story)


def test_a_process_that_cannot_be_killed_is_ended_by_one_attempt_with_pauses(lived, caplog):
    async def story(life):
        await life.submit("a", cpu=1)
        (cleaner,) = life.backend.cleaners
        cleaner.answers = [(77,)] * 10_000
        (actor,) = life.backend.actors
        actor.alive = False
        await asyncio.sleep(10.0)  # virtual time
        before = len(asyncio.all_tasks())
        await asyncio.sleep(600.0)  # virtual time: as many looks of the monitor
        attempts = [call for call in cleaner.calls if call[0] == "terminate"]
        assert len(attempts) < 30
        assert len(asyncio.all_tasks()) - before < 5
        assert caplog.text.count("agent a is dead") == 1
        assert "a" in life.running.reactor.state.agents, "its capacity stays taken"
        cleaner.answers.clear()
        await asyncio.sleep(30.0)  # virtual time
        assert life.running.reactor.state.agents == {}

    lived(story)


def test_a_process_that_cannot_be_killed_is_ended_once_whoever_asks(lived):
    async def story(life):
        await life.submit("a", cpu=1)
        (cleaner,) = life.backend.cleaners
        cleaner.answers = [(77,)] * 10_000
        life.backend.actors[0].alive = False
        await asyncio.sleep(2.0)  # virtual time: the monitor sees it
        life.ask(DeleteAgent(agent_name="a"))
        for _ in range(3):
            life.ask(EnsureAgentHealth(timeout_s=1.0))
        await asyncio.sleep(60.0)  # virtual time
        assert len([call for call in cleaner.calls if call[0] == "terminate"]) < 12

    lived(story)


def test_a_check_of_all_agents_waits_for_no_process_that_cannot_be_killed(lived):
    async def story(life):
        await life.submit("a", cpu=1)
        (cleaner,) = life.backend.cleaners
        cleaner.answers = [(77,)] * 10_000
        life.backend.actors[0].alive = False
        checked = asyncio.ensure_future(life.ask(EnsureAgentHealth(timeout_s=1.0)))
        await asyncio.sleep(60.0)  # virtual time
        assert checked.done(), "it does not wait for the end"
        answer = decode_answer(checked.result(), Details)
        assert (answer.facts["healthy"], answer.facts["rebuilt"], answer.facts["removed"]) == (
            0,
            [],
            [],
        )
        (detail,) = answer.facts["details"]
        assert (detail["agent_name"], detail["action"]) == ("a", "ending")

    lived(story)


def test_an_agent_whose_start_is_taken_over_hears_commands_at_once(lived):
    async def story(life):
        life.hold("agent_report")
        life.submit("a", cpu=1)
        await life.held.next("agent_report")
        await life.crash()
        incarnation = life.incarnation("a")
        poll = asyncio.ensure_future(life.service.poll("a", incarnation))
        await asyncio.sleep(1.0)  # virtual time
        (await life.held.next("agent_report")).let()
        await asyncio.sleep(1.0)  # virtual time
        commands = life.running.agents.commands
        pinged = asyncio.ensure_future(commands.execute("a", incarnation, "ping", SOON_S))
        await asyncio.sleep(0.1)  # virtual time
        assert poll.done()
        (command,) = unpack(poll.result(), list[Command])
        commands.done(command.command_id, pack(CommandResult()))
        assert (await pinged) is not None

    lived(story)


def test_an_agent_that_is_submitted_again_while_others_are_rebuilt_is_left_alone(lived):
    async def story(life):
        for name in "ab":
            await life.submit(name, cpu=1)
        life.hold("agent_report", "living_actors")
        for actor in life.backend.actors:
            actor.alive = False
        checked = life.ask(EnsureAgentHealth(timeout_s=1.0))
        while not [call for call in life.held.pending if call.call == "agent_report"]:
            await asyncio.sleep(0.1)  # virtual time
            for call in list(life.held.pending):
                if call.call == "living_actors":
                    call.let()
        again = life.submit("b", request="again", cpu=1)
        await asyncio.sleep(0.1)  # virtual time
        life.held.through |= CALLS
        for call in list(life.held.pending):
            call.let()
        await again
        answer = await checked
        assert b"internal_error" not in answer
        assert b"rebuilt" in answer
        assert len(life.backend.living()) == 2

    lived(story)


def test_a_state_that_could_not_be_saved_is_refused_with_the_cause(lived):
    async def story(life):
        await life.ask(ChangePolicy(changes={"preemption_grace_s": 100.0}, client="me"))
        await submit_task(life, "t", "first")
        life.ask(PreemptTask(task_id="t", client="me", request_id="preempt"))
        await asyncio.sleep(1.0)  # virtual time: within its grace
        error = 'save_state failed:\nTraceback\n  File "x", line 1\nOSError: the disk is full'
        await life.running.reactor.step(StateNotSaved(task_id="t", error=error))
        refused = decode_answer(await life.ask(GetSavedState(task_id="t")), SavedBytes)
        assert refused.reason is Reason.STATE_NOT_FOUND
        assert refused.error == (
            "no state of task 't' is stored: when it was evicted, OSError: the disk is full"
        )
        assert refused.detail == error

    lived(story)


def submit_task(life, name, request):
    agent = AgentSpec(name=name, pool_name="p", resources=ONE, class_key=key_of(lives.CLASS))
    task = TaskSpec(task_id=name, pool_name="p")
    stimulus = TaskSubmitted(agent=agent, task=task, request_id=request, choose_node=True)
    return life.ask(SubmitTask(submission=stimulus, blobs={key_of(lives.CLASS): lives.CLASS}))


async def preserved(life):
    """A task ``t`` of a pool with a preserver, whose calls are held."""
    key = key_of(b"preserver")
    given = RegisterStateHandlers(
        pool_name="p", preserver_key=key, restorer_key=None, blobs={key: b"preserver"}
    )
    await life.ask(given)
    await submit_task(life, "t", "first")
    life.hold("preserve_state")


async def saving(life):
    """One more save of the task, which waits for its preserver."""
    saving = life.ask(SaveTaskState(task_id="t"))
    await asyncio.sleep(1.0)  # virtual time
    return saving, life.held.pending[-1]


async def returns(life, call, state):
    life.backend.handled = lambda work: Handled(data=state)
    call.let()
    await asyncio.sleep(SOON_S)  # virtual time


def state_in(answer):
    saved = decode_answer(answer, SavedBytes).state
    return None if saved is None else unpack(saved, SavedState).state


async def submitted_again(life):
    """The task's agent is deleted, and its id submitted again."""
    await life.ask(DeleteAgent(agent_name="t"))
    await asyncio.sleep(SOON_S)  # virtual time
    await submit_task(life, "t", "again")
    return life.running.reactor.state.running.by_id["t"]


def test_of_two_saves_in_progress_the_older_state_never_replaces_the_newer(lived):
    async def story(life):
        await preserved(life)
        older, older_call = await saving(life)
        newer, newer_call = await saving(life)
        await returns(life, newer_call, b"newer")
        assert state_in(await newer) == b"newer"
        key = life.running.reactor.state.running.by_id["t"].state_key
        await returns(life, older_call, b"older")
        assert state_in(await older) == b"newer", "the answer is what is stored"
        assert life.running.reactor.state.running.by_id["t"].state_key == key
        assert state_in(await life.ask(GetSavedState(task_id="t"))) == b"newer"

    lived(story)


def test_a_state_of_a_former_life_is_not_stored_for_the_present_one(lived):
    async def story(life):
        await preserved(life)
        former, call = await saving(life)
        task = await submitted_again(life)
        await returns(life, call, b"former")
        assert state_in(await former) is None, "the task that was to be saved is not running"
        assert (task.phase, task.state_key) == (TaskPhase.RUNNING, None)

    lived(story)


@pytest.mark.parametrize("alone", [False, True])
def test_the_order_to_evict_a_former_life_does_not_reach_the_present_one(lived, alone):
    async def story(life):
        await preserved(life)
        life.held.through |= CALLS
        life.backend.handled = lambda work: Handled(data=b"state")
        incarnation = life.incarnation("t")
        task = await submitted_again(life)
        order = EvictAgent(agent_name="t", incarnation=incarnation, task_ids=("t",), grace_s=0.0)
        late = EvictTask(task_id="t") if alone else order
        life.running.executor.take(Step(instructions=(late,)))
        await asyncio.sleep(SOON_S)  # virtual time
        assert life.running.reactor.state.running.by_id["t"] is task
        assert (task.phase, task.state_key) == (TaskPhase.RUNNING, None)

    lived(story)


#: Virtual seconds that a process takes to save.
SAVE_S = 300.0


async def serve(life, name, save_s):
    """The process of an agent whose ``save_state`` takes so many virtual seconds."""
    incarnation, commands = life.incarnation(name), []
    while True:
        received = [command.command_id for command in commands]
        polled = await life.service.poll(name, incarnation, b"", None, received)
        commands = unpack(polled, list[Command])
        for command in commands:
            await asyncio.sleep(save_s if command.kind == "save" else 0.0)  # virtual time
            data = b"state" if command.kind == "save" else None
            await life.service.command_done(command.command_id, pack(CommandResult(data=data)))


def test_a_process_that_saves_for_long_is_not_silent(lived):
    """Nothing else reaches it meanwhile; one that hangs is silent once its time for saving is over."""

    async def story(life):
        changes = {"save_timeout": 2 * SAVE_S}
        await life.ask(ChangePolicy(changes=changes, client="here:1"))
        life.backend.start = lambda actor: actor.answers.update(
            agent_report=StartReport(node_id="n", pid=actor.pid, capabilities=("save_state",))
        )
        await submit_task(life, "a", "first")
        for save_s, healthy in ((SAVE_S, 1), (10 * SAVE_S, 0)):
            host = asyncio.ensure_future(serve(life, "a", save_s))
            saved = life.ask(SaveTaskState(task_id="a"))
            await asyncio.sleep(0.9 * SAVE_S)  # virtual time
            check = life.service._requests.agents.ensure_health
            assert (await check(120.0))["healthy"] == 1
            await saved
            await asyncio.sleep(1.0)  # virtual time
            assert (await check(120.0))["healthy"] == healthy
            host.cancel()

    lived(story)
