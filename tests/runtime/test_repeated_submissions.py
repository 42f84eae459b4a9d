"""A repeated submission is given the handle of its own agent, never that of another with its name."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from schedulemesh.api.pools import CreatePool
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.states import GetSavedState, RegisterStateHandlers, RestoreTask
from schedulemesh.api.tasks import CompleteTask, SubmitTask
from schedulemesh.config.settings import JournalSettings
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Accepted
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import Response, SavedBytes, decode_answer
from schedulemesh.protocol.requests import encode_request
from tests.engine.builders import Mesh
from tests.runtime import life as lives
from tests.runtime.composition import InThread

KEY = key_of(b"class")


@pytest.fixture
def mesh(tmp_path):
    found = InThread(tmp_path / "mesh.sqlite")
    pool = PoolSpec(name="p", resources=parse_resources({"cpu": 1}))
    found.do(found.service.ask(encode_request(CreatePool(spec=pool))))
    yield found
    found.close()


def answered(mesh, request):
    """The answer, and the handles that come with it."""
    answer = mesh.do(mesh.service.ask(encode_request(request)))
    return answer if isinstance(answer, tuple) else (answer, [])


def submitted(mesh, task_id):
    """The handles that a submission gets, whose agent is named "a"."""
    given = Mesh().submission(task_id, cpu=1, class_key=KEY)
    submission = msgspec.structs.replace(
        given,
        request_id=f"submit {task_id}",
        agent=msgspec.structs.replace(given.agent, name="a"),
    )
    request = SubmitTask(submission=submission, blobs={KEY: b"class"})
    data, handles = answered(mesh, request)
    outcome = decode_answer(data, Response).outcome
    assert isinstance(outcome, Accepted)
    assert (outcome.task_id, outcome.agent_name) == (task_id, "a")
    return handles


def test_while_its_agent_lives_it_gets_its_handle_though_its_task_has_ended(mesh):
    (first,) = submitted(mesh, "t")
    assert submitted(mesh, "t") == [first]
    answered(mesh, CompleteTask(task_id="t", request_id="end t"))
    assert submitted(mesh, "t") == [first]


def test_it_does_not_get_a_later_agent_of_its_agents_name(mesh):
    (first,) = submitted(mesh, "t")
    answered(mesh, CompleteTask(task_id="t", end_agent=True, request_id="end t"))
    assert submitted(mesh, "t") == []
    (second,) = submitted(mesh, "u")
    assert second is not first
    assert submitted(mesh, "t") == []
    assert submitted(mesh, "u") == [second]


def test_it_gets_the_agent_on_which_its_task_runs_again(mesh):
    (first,) = submitted(mesh, "t")
    answered(mesh, PreemptTask(task_id="t", request_id="preempt t"))
    data, _ = answered(mesh, GetSavedState(task_id="t"))
    saved = msgspec.msgpack.decode(decode_answer(data, SavedBytes).state, type=SavedState)
    answered(mesh, RestoreTask(saved=saved, request_id="restore t"))
    (second,) = submitted(mesh, "t")
    assert second is not first


def test_a_state_above_the_limit_is_not_restored(mesh, monkeypatch):
    submitted(mesh, "t")
    answered(mesh, PreemptTask(task_id="t", request_id="preempt t"))
    data, _ = answered(mesh, GetSavedState(task_id="t"))
    saved = msgspec.msgpack.decode(decode_answer(data, SavedBytes).state, type=SavedState)
    monkeypatch.setattr(
        mesh.running.reactor, "_settings", JournalSettings(saved_state_bytes=saved.size + 1000)
    )
    large = msgspec.structs.replace(saved, state=bytes(2000))
    data, _ = answered(mesh, RestoreTask(saved=large, request_id="restore t"))
    outcome = decode_answer(data, Response).outcome
    assert outcome.reason is Reason.STATE_TOO_LARGE
    assert f"more than saved_state_bytes, {saved.size + 1000}" in outcome.error
    answered(mesh, RestoreTask(saved=saved, request_id="restore the other"))
    assert len(submitted(mesh, "t")) == 1


def test_a_restoration_that_is_repeated_while_it_is_in_progress_runs_its_restorer_once(tmp_path):
    async def story(life):
        key = key_of(b"restorer")
        handlers = RegisterStateHandlers(
            pool_name="p", preserver_key=None, restorer_key=key, blobs={key: b"restorer"}
        )
        await life.ask(handlers)
        life.hold("restore_state")
        saved = SavedState(
            task=TaskSpec(task_id="t", pool_name="p"),
            agent_name="a",
            source="save_state",
            saved_at=1.0,
        )
        request = RestoreTask(saved=saved, request_id="restore")
        first, repeated = life.ask(request), life.ask(request)
        other = life.ask(msgspec.structs.replace(request, request_id="another"))
        await asyncio.sleep(1.0)  # virtual time
        assert [work for work, _ in life.backend.probes] == ["restore_state"] * 2
        for call in life.held.pending:
            call.let()
        assert await first == await repeated == await other

    lives.run(tmp_path / "mesh.sqlite", story)
