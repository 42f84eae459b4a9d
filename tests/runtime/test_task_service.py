"""Tasks that run by themselves, as a whole supervisor on a fake backend handles them."""

from __future__ import annotations

import asyncio
import pickle

import msgspec
import pytest

from schedulemesh.api.pools import CreatePool
from schedulemesh.api.tasks import (
    CancelTask,
    CancelTasks,
    GetResult,
    SubmitTask,
    WaitTasks,
    WaitUntil,
)
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import Accepted, Change, Done, Refused, TasksCancelled
from schedulemesh.protocol.agents import KeptResult, RunOrder, RunReport, key_of, pack, unpack
from schedulemesh.protocol.answers import Listed, PoolResponse, Response, TaskResult, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.agents import registry as agent_registry
from tests.engine.builders import Mesh
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend, HeldCalls, Verdict

#: Calls that a test lets through: all but that of a run.
CALLS = (
    "nodes",
    "demand",
    "recall",
    "living_actors",
    "keep",
    "groups",
    "agent_report",
    "actor",
    "actor_ended",
    "terminate",
    "left_behind",
    "find_actor",
    "kill",
    "death_of",
    "has_lost_room",
    "deaths_of",
)
KEPT = pack(KeptResult(value=pickle.dumps(42)))


def run(story):
    return asyncio.run(asyncio.wait_for(story, 30.0))


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def journal_file(tmp_path):
    return tmp_path / "mesh.sqlite"


async def asked(service, request, kind):
    return decode_answer(await _answered(service, request), kind)


async def _answered(service, request):
    answer = await service.ask(encode_request(request))
    return answer[0] if isinstance(answer, tuple) else answer


async def with_task(service, task_id="t", **how):
    """A pool with one agent whose task runs by itself."""
    spec = PoolSpec(name="p", resources=parse_resources({"cpu": 2}))
    await asked(service, CreatePool(spec=spec), PoolResponse)
    await submitted(service, task_id, **how)


async def submitted(service, task_id, agent_name=None, **how):
    """An agent, named like its task or otherwise, whose task runs by itself."""
    given = Mesh().submission(task_id, cpu=1, class_key=key_of(b"class"), run="train", **how)
    submission = msgspec.structs.replace(
        given,
        request_id=f"submit {task_id}",
        agent=msgspec.structs.replace(given.agent, name=agent_name or given.agent.name),
    )
    request = SubmitTask(submission=submission, blobs={key_of(b"class"): b"class"})
    answer = await asked(service, request, Response)
    assert isinstance(answer.outcome, Accepted), answer


async def waited(service, *task_ids, until=WaitUntil.ENDED, enough=None, wait_s=30.0):
    request = WaitTasks(
        task_ids=task_ids, until=until, enough=enough or len(task_ids), wait_s=wait_s
    )
    return await asked(service, request, Listed)


async def states(service, *task_ids, **how):
    return [row["state"] for row in (await waited(service, *task_ids, **how)).rows]


async def result(service, task_id="t", wait_s=0.0):
    return await asked(service, GetResult(task_id=task_id, wait_s=wait_s), TaskResult)


async def killed(service):
    """End a supervisor's process, as far as a process can be ended within this one."""
    running = (await service.ready()).running
    running.executor.stop_all()
    await running.reactor.close(destroy=False)


def stuck(actor):
    """Its run does not end by itself."""
    actor.answers["run_task"] = RunReport(kept=KEPT)


def test_a_run_is_ordered_with_its_method_and_its_result_is_read(backend, journal_file):
    backend.start = stuck

    async def story():
        service = supervisor(backend, journal_file)
        await with_task(service)
        assert await states(service, "t") == ["completed"]
        found = await result(service)
        assert (found.state, found.kept) == ("completed", KEPT)
        (order,) = [args[0] for call, args in backend.actors[0].calls if call == "run_task"]
        assert unpack(order, RunOrder).method == "train"
        await (await service.ready()).running.answers.end_of("t")
        assert not backend.actors[0].alive
        await killed(service)

    run(story())


def test_a_wait_returns_when_enough_have_ended_and_holds_nothing_afterwards(backend, journal_file):
    async def story():
        backend.control = held = HeldCalls(*CALLS)
        service = supervisor(backend, journal_file)
        await with_task(service, "one")
        await with_task(service, "two")
        waits = (await service.ready()).tasks._waits
        one = await held.next("run_task")
        two = next(call for call in held.pending if call is not one)
        both = asyncio.ensure_future(states(service, "one", "two"))
        first = asyncio.ensure_future(states(service, "one", "two", enough=1))
        assert await states(service, "one", "two", until=WaitUntil.RUNNING) == ["running"] * 2
        one.let()
        assert await first == ["completed", "running"]
        assert not both.done()
        two.let()
        assert await both == ["completed", "completed"]
        assert len(waits) == 0
        await killed(service)

    run(story())


def test_a_wait_that_runs_out_of_time_tells_the_states(backend, journal_file):
    async def story():
        backend.control = HeldCalls(*CALLS)
        service = supervisor(backend, journal_file)
        await with_task(service)
        assert await states(service, "t", wait_s=0.0) == ["running"]
        assert await states(service, "t", wait_s=0.01) == ["running"]
        assert (await result(service)).reason is Reason.TASK_NOT_ENDED
        unknown = await waited(service, "t", "nobody")
        assert isinstance(unknown, Refused)
        assert unknown.reason is Reason.TASK_NOT_FOUND
        assert "'nobody'" in unknown.error
        await killed(service)

    run(story())


def test_a_cancelled_task_wakes_who_waits_and_has_no_result(backend, journal_file):
    async def story():
        backend.control = held = HeldCalls(*CALLS)
        service = supervisor(backend, journal_file)
        await with_task(service)
        late = await held.next("run_task")
        waiting = asyncio.ensure_future(states(service, "t"))
        wanted = asyncio.ensure_future(result(service, wait_s=30.0))
        await asked(service, CancelTask(task_id="t", request_id="c"), Response)
        assert await waiting == ["cancelled"]
        assert (await wanted).reason is Reason.TASK_CANCELLED
        assert not backend.actors[0].alive
        late.let()
        assert (await result(service)).reason is Reason.TASK_CANCELLED
        await killed(service)

    run(story())


@pytest.mark.parametrize(
    "again", [CancelTask(task_id="t", request_id="2"), CancelTasks(task_ids=("t",))]
)
def test_a_task_that_is_cancelled_twice_is_answered_twice_when_its_process_is_gone(
    again, backend, journal_file
):
    async def story():
        backend.control = held = HeldCalls(*(call for call in CALLS if call != "terminate"))
        service = supervisor(backend, journal_file)
        await with_task(service)
        first, second = (
            asyncio.ensure_future(asked(service, request, Response))
            for request in (CancelTask(task_id="t", request_id="1"), again)
        )
        late = await held.next("terminate")
        done, _ = await asyncio.wait({first, second}, timeout=0.2)
        assert not done
        late.let()
        assert (await first).outcome == Done()
        outcome = (await second).outcome
        assert outcome in (Done(change=Change.ALREADY_ENDED), TasksCancelled(already_ended=("t",)))
        assert not backend.actors[0].alive
        await killed(service)

    run(story())


def test_who_cancels_an_ended_task_does_not_wait_for_another_agent_of_the_same_name(
    backend, journal_file
):
    async def story():
        backend.control = held = HeldCalls(*(call for call in CALLS if call != "terminate"))
        service = supervisor(backend, journal_file)
        await with_task(service)
        ending = asyncio.ensure_future(
            asked(service, CancelTask(task_id="t", request_id="1"), Response)
        )
        (await held.next("terminate")).let()
        await ending
        await submitted(service, "u", agent_name="t")
        ending = asyncio.ensure_future(
            asked(service, CancelTask(task_id="u", request_id="2"), Response)
        )
        late = await held.next("terminate")
        again = await asked(service, CancelTask(task_id="t", request_id="3"), Response)
        assert again.outcome == Done(change=Change.ALREADY_ENDED)
        assert not ending.done()
        late.let()
        await ending
        await killed(service)

    run(story())


def test_the_next_supervisor_adopts_the_run_and_the_result(backend, journal_file):
    async def story():
        backend.control = held = HeldCalls(*CALLS)
        first = supervisor(backend, journal_file)
        await with_task(first)
        await held.next("run_task")
        await killed(first)
        backend.restarted = True
        second = supervisor(backend, journal_file)
        assert await states(second, "t", until=WaitUntil.RUNNING) == ["running"]
        waiting = asyncio.ensure_future(states(second, "t"))
        (await held.next("run_task")).let()
        assert await waiting == ["completed"]
        await killed(second)
        third = supervisor(backend, journal_file)
        assert (await result(third)).state == "completed"
        assert len(backend.actors) == 1
        await killed(third)

    run(story())


def test_a_call_that_fails_is_repeated_until_the_agent_is_gone(backend, journal_file, monkeypatch):
    monkeypatch.setattr(agent_registry, "_RUN_RETRY_S", 0.001)

    async def story():
        backend.control = held = HeldCalls(*CALLS)
        service = supervisor(backend, journal_file, monitor_interval_s=0.01)
        await with_task(service)
        (await held.next("run_task")).let(Verdict.ANSWER_LOST)
        (await held.next("run_task")).let()
        assert await states(service, "t") == ["completed"]

        await with_task(service, "dies")
        call = await held.next("run_task")
        backend.actors[-1].alive = False
        call.let(Verdict.REFUSED)
        assert await states(service, "dies") == ["lost"]
        assert (await result(service, "dies")).reason is Reason.TASK_LOST
        await killed(service)

    run(story())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (KeptResult(value=b"not a report"), TaskEndReason.NOT_RUN),
        (RunReport(kept=b"x" * 20_000_000), TaskEndReason.RESULT_TOO_LARGE),
        (RunReport(kept=KEPT, reason=TaskEndReason.RUN_RAISED, error="no"), "run_raised"),
    ],
)
def test_what_a_host_reports_is_checked(backend, journal_file, answer, reason):
    def started(actor):
        actor.answers["run_task"] = answer

    backend.start = started

    async def story():
        service = supervisor(backend, journal_file)
        await with_task(service)
        (row,) = (await waited(service, "t")).rows
        assert (row["state"], row["reason"]) == ("failed", reason)
        assert (await result(service)).error == row["error"]
        await killed(service)

    run(story())
