"""A supervisor that recovers starts once what became possible while there was none."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import CreatePool
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.tasks import CancelTask, SubmitTask, WaitTasks, WaitUntil
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.protocol.agents import Command, CommandResult, RunReport, key_of, pack, unpack
from schedulemesh.protocol.answers import Listed, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from tests.engine.builders import Mesh
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import NOTHING_RETURNED, FakeBackend, HeldCalls, Verdict

CLASS = b"a class"
ONE = parse_resources({"cpu": 1})
RAISED = RunReport(kept=b"", reason=TaskEndReason.RUN_RAISED, error="no")


class Backend(FakeBackend):
    """The first run raises. Notes every attempt to start a process."""

    def __init__(self):
        super().__init__()
        self.starts = []
        self.start = self.raises_first

    def raises_first(self, actor):
        if len(self.actors) == 1:
            actor.answers["run_task"] = RAISED

    def start_agent(self, request):
        self.starts.append(request.name)
        return super().start_agent(request)

    async def agent_report(self, handle):
        await asyncio.sleep(1.0)  # virtual: as long as the process takes to start
        return await super().agent_report(handle)


@pytest.mark.parametrize("look", ["living_actors", "nodes", "groups"])
def test_a_look_that_fails_once_does_not_leave_a_supervisor_that_nobody_asks_unrecovered(
    tmp_path, look
):
    class Control(HeldCalls):
        def __init__(self):
            super().__init__()
            self.refusals = 1

        async def turn(self, call, subject):
            if call == look and self.refusals:
                self.refusals -= 1
                return Verdict.REFUSED
            return Verdict.DONE

    async def story():
        backend = FakeBackend()
        backend.control, backend.restarted = Control(), True
        service = supervisor(backend, tmp_path / "j.sqlite")
        await service.recover()
        assert backend.control.refusals == 0
        assert service._requests is not None
        await killed(service)

    virtual_time.run(story())


async def asked(service, request):
    answer = await service.ask(encode_request(request))
    return answer[0] if isinstance(answer, tuple) else answer


async def killed(service):
    running = (await service.ready()).running
    running.executor.stop_all()
    await running.reactor.close(destroy=False)


async def ended(service):
    request = WaitTasks(task_ids=("t",), until=WaitUntil.ENDED, enough=1, wait_s=30.0)
    (row,) = decode_answer(await asked(service, request), Listed).rows
    return row["state"]


async def submitted(service, **how):
    """A pool, and a task that runs by itself there or waits for it."""
    await asked(service, CreatePool(spec=PoolSpec(name="p", resources=ONE)))
    key = key_of(CLASS)
    given = Mesh().submission("t", cpu=1, class_key=key, run="train", retries=1)
    submission = msgspec.structs.replace(given, request_id="submit", **how)
    await asked(service, SubmitTask(submission=submission, blobs={key: CLASS}))
    return service._requests.running.reactor.state


def after_a_crash(backend, journal_file):
    """The next supervisor."""
    backend.restarted = True
    return supervisor(backend, journal_file, clock=virtual_time.clock())


def test_a_retry_that_became_due_meanwhile_starts_once(tmp_path):
    backend = Backend()

    async def story():
        service = supervisor(backend, tmp_path / "mesh.sqlite", clock=virtual_time.clock())
        state = await submitted(service)
        await asyncio.sleep(0.5)  # virtual: it raises at once
        assert "t" in state.queue.by_id
        await killed(service)
        await asyncio.sleep(60.0)  # virtual
        service = after_a_crash(backend, tmp_path / "mesh.sqlite")
        assert await ended(service) == "completed"
        assert len(backend.starts) == 2
        await killed(service)

    virtual_time.run(story())


def test_a_task_that_is_cancelled_while_its_process_is_adopted_leaves_none(tmp_path):
    backend = Backend()

    async def story():
        service = supervisor(backend, tmp_path / "mesh.sqlite", clock=virtual_time.clock())
        submitting = asyncio.ensure_future(submitted(service))
        await asyncio.sleep(0.5)  # virtual: its process starts
        submitting.cancel()
        await killed(service)
        assert len(backend.living()) == 1
        service = after_a_crash(backend, tmp_path / "mesh.sqlite")
        await asked(service, CancelTask(task_id="t", request_id="cancel"))
        assert backend.living() == set()
        assert await ended(service) == "cancelled"
        await killed(service)

    virtual_time.run(story())


def test_a_task_whose_node_came_meanwhile_starts_once(tmp_path):
    backend = Backend()
    backend.free = [NodeView(node_id="n1", total=NOTHING, free=NOTHING, labels={})]

    async def story():
        service = supervisor(backend, tmp_path / "mesh.sqlite", clock=virtual_time.clock())
        state = await submitted(service, choose_node=True, queue=True)
        assert "t" in state.queue.by_id
        await killed(service)
        backend.free = [NodeView(node_id="n1", total=ONE, free=ONE, labels={})]
        service = after_a_crash(backend, tmp_path / "mesh.sqlite")
        assert await ended(service) == "completed"
        assert len(backend.starts) == 2, "the first run raises"
        await killed(service)

    virtual_time.run(story())


class Running(FakeBackend):
    """Runs last until ``returns`` is called; everything else is answered at once."""

    def __init__(self):
        super().__init__()
        self.runs = []
        self.over = None

    async def run_task(self, handle, order):
        self.runs.append(handle)
        await self.over.wait()
        return await super().run_task(handle, order)


async def answer_commands(service, report):
    """The process of an agent whose method blocks: it says whether its run has ended, and obeys."""
    commands = []
    while True:
        received = [command.command_id for command in commands]
        commands = unpack(await service.poll("t", 1, b"", None, received), list[Command])
        for command in commands:
            result = CommandResult(data=report if command.kind == "report" else None)
            await service.command_done(command.command_id, pack(result))


@pytest.mark.parametrize(
    ("returned", "state", "processes"), [(True, "completed", 1), (False, "running", 2)]
)
@pytest.mark.parametrize("blocked", [False, True])
def test_a_run_that_ended_while_there_was_no_supervisor_is_not_evicted(
    tmp_path, returned, state, processes, blocked
):
    backend = Running()

    async def story():
        backend.over = asyncio.Event()
        service = supervisor(backend, tmp_path / "mesh.sqlite", clock=virtual_time.clock())
        await asked(service, CreatePool(spec=PoolSpec(name="p", resources=ONE)))
        policy = {"preemption_grace_s": 100.0}
        await asked(service, ChangePolicy(changes=policy, client="me"))
        key = key_of(CLASS)
        how = {"cpu": 1, "class_key": key, "run": "train", "on_preempted": "requeue"}
        given = Mesh().submission("t", **how)
        submission = msgspec.structs.replace(given, request_id="submit", queue=True)
        await asked(service, SubmitTask(submission=submission, blobs={key: CLASS}))
        await asyncio.sleep(1.0)  # virtual
        preempt = PreemptTask(task_id="t", client="me", request_id="preempt")
        evicting = asyncio.ensure_future(asked(service, preempt))
        await asyncio.sleep(1.0)  # virtual: within its grace
        assert not evicting.done()
        evicting.cancel()
        await killed(service)
        if returned and not blocked:
            backend.over.set()
        service = after_a_crash(backend, tmp_path / "mesh.sqlite")
        await service.ready()
        if blocked:
            report = pack(RunReport(kept=NOTHING_RETURNED)) if returned else None
            host = asyncio.ensure_future(answer_commands(service, report))
        await asyncio.sleep(300.0)  # virtual
        if blocked:
            host.cancel()
        request = WaitTasks(task_ids=("t",), until=WaitUntil.ENDED, enough=1, wait_s=0.0)
        (row,) = decode_answer(await asked(service, request), Listed).rows
        assert row["state"] == state
        assert len(set(map(id, backend.runs))) == processes
        await killed(service)

    virtual_time.run(story())


class Timed(Running):
    """The note at the end of a recovery takes so many rounds of the loop."""

    rounds = 0

    async def keep(self, key, value):
        for _ in range(self.rounds if self.restarted else 0):
            await asyncio.sleep(0)
        await super().keep(key, value)


@pytest.mark.parametrize("rounds", range(12))
def test_what_is_decided_while_it_recovers_is_started_once(tmp_path, rounds):
    """However long before its recovery ends, in rounds of the event loop."""

    async def story():
        backend, journal_file = Timed(), tmp_path / "j.sqlite"
        backend.over = asyncio.Event()
        service = supervisor(backend, journal_file, clock=virtual_time.clock())
        await submitted(service)
        await asyncio.sleep(1.0)  # virtual
        await killed(service)
        (former,) = backend.actors
        former.alive = False
        backend.rounds = rounds
        service = after_a_crash(backend, journal_file)
        await service.ready()
        await asyncio.sleep(5.0)  # virtual
        _, present = backend.actors
        assert backend.living() == {present.address}
        await killed(service)

    virtual_time.run(story())
