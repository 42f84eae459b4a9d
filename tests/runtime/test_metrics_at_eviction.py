"""What an agent has reported and not sent yet is part of its saved state, however late it answers."""

from __future__ import annotations

import asyncio

import msgspec

from schedulemesh.api.pools import CreatePool
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.states import GetSavedState, RegisterStateHandlers
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.protocol.agents import (
    Command,
    CommandResult,
    Handled,
    MetricsReport,
    key_of,
    pack,
    unpack,
)
from schedulemesh.protocol.answers import SavedBytes, decode_answer
from schedulemesh.protocol.metric_values import encode_metrics
from schedulemesh.protocol.requests import encode_request
from tests.engine.builders import Mesh
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend

SAVES_S = PreemptionPolicy().save_timeout


class Backend(FakeBackend):
    """Notes what the preserver was given, and how long it may take."""

    def __init__(self):
        super().__init__()
        self.preserved = []

    async def preserve_state(self, handler, task, started_at, limit_bytes, timeout_s):
        self.preserved.append((unpack(task, SavedState).last_metrics, timeout_s))
        return pack(Handled(data=b"state"))


async def asked(service, request):
    answer = await service.ask(encode_request(request))
    return answer[0] if isinstance(answer, tuple) else answer


def report(step):
    metrics = msgspec.Raw(encode_metrics({"step": step}))
    return pack(MetricsReport(agent_name="t", incarnation=1, metrics=metrics))


async def host(service, answers_after_s):
    """The agent's process: it answers each command after so many seconds; its newest metrics come with it."""
    commands = []
    while True:
        received = [command.command_id for command in commands]
        commands = unpack(await service.poll("t", 1, b"", None, received), list[Command])
        for command in commands:
            await asyncio.sleep(answers_after_s)  # virtual time
            able = command.kind == "ping"
            answer = CommandResult(able=able, metrics=report(60))
            await service.command_done(command.command_id, pack(answer))


def evicted(tmp_path, answers_after_s, *, preserver):
    """The metrics in the saved state, what the preserver got, and the seconds until the eviction was over."""
    backend = Backend()

    async def story():
        service = supervisor(backend, tmp_path / "mesh.sqlite", clock=virtual_time.clock())
        pool = PoolSpec(name="p", resources=parse_resources({"cpu": 2}))
        await asked(service, CreatePool(spec=pool))
        if preserver:
            key = key_of(b"preserver")
            given = RegisterStateHandlers(
                pool_name="p", preserver_key=key, blobs={key: b"preserver"}
            )
            await asked(service, given)
        given = Mesh().submission("t", cpu=1, class_key=key_of(b"class"))
        submission = msgspec.structs.replace(given, request_id="submit")
        await asked(service, SubmitTask(submission=submission, blobs={key_of(b"class"): b"class"}))
        assert await service.report_metrics(report(1))
        polling = asyncio.ensure_future(host(service, answers_after_s))
        began = asyncio.get_running_loop().time()
        await asked(service, PreemptTask(task_id="t", request_id="preempt"))
        took_s = asyncio.get_running_loop().time() - began
        answer = decode_answer(await asked(service, GetSavedState(task_id="t")), SavedBytes)
        polling.cancel()
        running = service._requests.running
        running.executor.stop_all()
        await running.reactor.close(destroy=False)
        return msgspec.msgpack.decode(answer.state, type=SavedState).last_metrics, took_s

    metrics, took_s = virtual_time.run(story())
    return metrics, backend.preserved, took_s


def test_an_agent_on_a_busy_machine_is_waited_for(tmp_path):
    metrics, preserved, _ = evicted(tmp_path, 4.0, preserver=True)
    assert metrics == {"step": 60}
    assert preserved == [({"step": 60}, SAVES_S - 4.0)]


def test_it_is_also_waited_for_where_the_state_is_the_payload(tmp_path):
    metrics, _, _ = evicted(tmp_path, 4.0, preserver=False)
    assert metrics == {"step": 60}


def test_an_agent_that_hangs_leaves_half_of_the_time_to_the_preserver(tmp_path):
    metrics, preserved, took_s = evicted(tmp_path, 1000.0, preserver=True)
    assert metrics == {"step": 1}
    assert preserved == [({"step": 1}, SAVES_S / 2)]
    assert took_s <= SAVES_S + PreemptionPolicy().cancel_timeout
