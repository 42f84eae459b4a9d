"""The host of a user's object, as a plain object: whatever user code raises becomes text in its answers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import msgspec
import pytest
from ray import cloudpickle

from schedulemesh.core.agent import control_channel as agent_link
from schedulemesh.core.agent import host as agent_host
from schedulemesh.core.agent.host import host_class
from schedulemesh.core.agent.user_workers import preserve, probe_class, restore
from schedulemesh.core.agent.warm_host import warm_host_class
from schedulemesh.core.transport.user_code import ship_arguments, ship_class, ship_function
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import (
    Accelerators,
    AgentInit,
    Command,
    CommandResult,
    Handled,
    JobStart,
    RunOrder,
    RunReport,
    ShippedClass,
    StartReport,
    pack,
    unpack,
)


class OwnFault(BaseException):
    """A type of user code."""


FAULTS = [OwnFault("own"), SystemExit("exit"), KeyboardInterrupt("stop"), ValueError("no")]
faults = pytest.mark.parametrize("fault", FAULTS, ids=lambda f: type(f).__name__)

SAVED = SavedState(
    task=TaskSpec(task_id="t", pool_name="p", priority=1.0),
    agent_name="a",
    source="save_state",
    saved_at=1.0,
    state=cloudpickle.dumps({"step": 3}),
)


class Faulty:
    """Raises in the method that it is told."""

    def __init__(self, name, labels, where="", fault=None):
        self.where, self.fault = where, fault
        self._raise("init")

    def _raise(self, here):
        if self.where == here:
            raise self.fault

    def restore_state(self, saved):
        self._raise("restore_state")

    def save_state(self):
        self._raise("save_state")

    def cancel(self, task_id):
        self._raise("cancel")

    def on_preemption_notice(self, deadline_s):
        self._raise("notice")


class FaultyAsync(Faulty):
    """The same with coroutines."""

    async def save_state(self):
        self._raise("save_state")

    async def cancel(self, task_id):
        self._raise("cancel")

    async def restore_state(self, saved):
        self._raise("restore_state")


class Unreadable:
    """Its attributes raise."""

    def __init__(self, name, labels):
        pass

    def __getattr__(self, name):
        raise OwnFault(name)


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    context = SimpleNamespace(get_node_id=lambda: "n", get_accelerator_ids=dict)
    monkeypatch.setattr(agent_host.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(agent_link, "_current", None)
    monkeypatch.setattr(agent_link.ControlChannel, "start", lambda self: None)


def shipped(cls):
    return msgspec.msgpack.decode(ship_class(cls), type=ShippedClass)


def boot_of(cls, where="", fault=None, saved=None, job=None):
    arguments = ship_arguments((where, fault), {}).data if where else None
    return pack(
        AgentInit(
            scheduler="s",
            namespace="n",
            agent_name="a",
            incarnation=1,
            labels={},
            shipped=ship_class(cls),
            arguments=arguments,
            saved=None if saved is None else pack(saved),
            job=job,
        )
    )


def host_of(cls, *args, **more):
    return host_class(shipped(cls))(boot_of(cls, *args, **more), None, [], [])


def report_of(host):
    answer = host.schedulemesh_report()
    return unpack(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer, StartReport)


@faults
@pytest.mark.parametrize("cls", [Faulty, FaultyAsync])
def test_a_constructor_that_raises_anything_is_reported_as_text(cls, fault):
    report = report_of(host_of(cls, "init", fault))
    assert type(fault).__name__ in report.error
    assert str(fault) in report.error


@faults
@pytest.mark.parametrize("cls", [Faulty, FaultyAsync])
def test_a_restore_that_raises_anything_is_reported_as_text(cls, fault):
    report = report_of(host_of(cls, "restore_state", fault, saved=SAVED))
    assert type(fault).__name__ in report.error
    assert report.restore_failed
    assert not report_of(host_of(cls, "init", fault, saved=SAVED)).restore_failed


class Counting:
    """As the documents show it: it takes what it has saved."""

    def __init__(self, name, labels):
        self.count = 0

    def restore_state(self, saved):
        self.count = saved["count"]

    def run(self, fault):
        raise fault


def test_where_nothing_was_saved_an_object_starts_anew():
    payload = msgspec.structs.replace(SAVED, source="payload", state=None)
    report = report_of(host_of(Counting, saved=payload))
    assert (report.error, report.state_restored) == ("", False)
    count = msgspec.structs.replace(SAVED, state=cloudpickle.dumps({"count": 7}))
    assert report_of(host_of(Counting, saved=count)).state_restored is True


class Runner:
    """The runner of a job."""

    def __init__(self, name, labels, job):
        self.job = job

    def begins_from_saved(self):
        return self.job.attempt > 1


class Adopter:
    """The runner of an adopted job."""

    def __init__(self, name, labels, job):
        pass


@pytest.mark.parametrize("saved", [None, SAVED])
@pytest.mark.parametrize(("cls", "restored"), [(Runner, True), (Adopter, None)])
def test_a_job_begins_from_what_its_runner_finds_whatever_else_is_kept_of_it(cls, restored, saved):
    job = JobStart(task_id="t", attempt=2, scheduler="s", namespace="n", owner="n/a#1", folder="")
    report = report_of(host_of(cls, saved=saved, job=job))
    assert (report.error, report.state_restored) == ("", restored)


def ended_by(fault):
    """The report of a run that raises this."""
    arguments = ship_arguments((fault,), {}).data
    order = RunOrder(task_id="t", method="run", arguments=arguments, limit_bytes=10_000)
    return unpack(host_of(Counting).schedulemesh_run(pack(order)), RunReport)


def test_a_run_that_exits_has_failed_and_one_whose_process_is_terminated_has_not_ended():
    assert ended_by(SystemExit(3)).reason == "run_raised"
    ended = SystemExit(1)
    ended.ray_terminate_msg = "The process receives a SIGTERM."
    with pytest.raises(SystemExit):
        ended_by(ended)


@faults
def test_a_class_that_cannot_be_loaded_is_reported_as_text(fault):
    class Trap:
        def __reduce__(self):
            return _raising, (type(fault).__name__,)

    class Trapped:
        trap = Trap()

        def __init__(self, name, labels):
            pass

    assert type(fault).__name__ in report_of(host_of(Trapped)).error
    probed = unpack(probe_class(ship_class(Trapped)), Handled)
    assert type(fault).__name__ in probed.error
    ready = warm_host_class(shipped(Trapped))(ship_class(Trapped), Accelerators(), None, 0)
    assert type(fault).__name__ in unpack(ready.schedulemesh_ready(), Handled).error


def _raising(name):
    raise next(fault for fault in FAULTS if type(fault).__name__ == name)


@faults
def test_a_ready_host_builds_as_any_other(fault):
    host = warm_host_class(shipped(Faulty))(ship_class(Faulty), Accelerators(), None, 0)
    assert unpack(host.schedulemesh_ready(), Handled).error == ""
    report = unpack(host.schedulemesh_build(boot_of(Faulty, "init", fault), [], []), StartReport)
    assert type(fault).__name__ in report.error


class ErrorRef:
    """An object reference that stands for an error."""

    def future(self):
        found = Future()
        found.set_exception(OwnFault("1 reference"))
        return found


def test_a_reference_to_an_error_is_reported_as_text():
    host = host_class(shipped(Faulty))(boot_of(Faulty, "nowhere"), None, [ErrorRef()], [])
    assert "OwnFault: 1 reference" in report_of(host).error


def test_an_object_whose_attributes_raise_has_no_control_methods():
    host = host_of(Unreadable)
    assert report_of(host) == StartReport(node_id="n", pid=report_of(host).pid)
    for kind in ("save", "cancel", "notice"):
        result = host._sm_channel._carry_out(Command(command_id=1, epoch=1, kind=kind))
        assert result == CommandResult(able=False)


@faults
@pytest.mark.parametrize(
    ("kind", "where"), [("save", "save_state"), ("cancel", "cancel"), ("notice", "notice")]
)
def test_a_command_that_raises_anything_is_answered_with_text(kind, where, fault):
    link = host_of(Faulty, where, fault)._sm_channel
    result = link._carry_out(Command(command_id=1, epoch=1, kind=kind))
    assert (result.success, result.data) == (False, None)
    assert type(fault).__name__ in result.error


@faults
@pytest.mark.parametrize(("kind", "where"), [("save", "save_state"), ("cancel", "cancel")])
def test_a_coroutine_that_raises_anything_leaves_its_loop_running(kind, where, fault):
    link = host_of(FaultyAsync, where, fault)._sm_channel
    link.loop = asyncio.new_event_loop()
    thread = threading.Thread(target=link.loop.run_forever, daemon=True)
    thread.start()
    try:
        for _ in range(2):
            result = link._carry_out(Command(command_id=1, epoch=1, kind=kind))
            assert type(fault).__name__ in result.error
        assert thread.is_alive()
    finally:
        link.loop.call_soon_threadsafe(link.loop.stop)
        thread.join(60)
        link.loop.close()


@faults
def test_state_handlers_that_raise_anything_are_answered_with_text(fault):
    name = type(fault).__name__

    def handler(given):
        _raising(name)

    code = ship_function(handler, "handler")
    for answer in (preserve(code, pack(SAVED), 1.0, 10_000), restore(code, pack(SAVED))):
        assert name in unpack(answer, Handled).error


@pytest.mark.parametrize("name", ["schedulemesh_report", "_sm_build"])
def test_a_class_may_not_take_a_method_of_its_host(name):
    cls = type("Taking", (), {name: lambda self: None})
    with pytest.raises(InvalidRequestError, match=name):
        ship_class(cls)


class Large(Faulty):
    def save_state(self):
        return b"x" * 10_000_000


@pytest.mark.parametrize("limit", [1000, 9_999_999])
def test_a_state_that_takes_too_much_is_not_sent(limit):
    command = Command(command_id=1, epoch=1, kind="save", limit_bytes=limit)
    result = host_of(Large)._sm_channel._carry_out(command)
    assert (result.data, result.too_large, result.success) == (None, True, False)
    assert f"more than {limit} bytes" in result.error
    assert "Traceback" not in result.error


class Empty(Faulty):
    def save_state(self):
        return None


class EmptyAsync(Faulty):
    async def save_state(self):
        return None


@pytest.mark.parametrize("kind", [Empty, EmptyAsync])
def test_none_is_no_state(kind):
    command = Command(command_id=1, epoch=1, kind="save", limit_bytes=1000)
    result = host_of(kind)._sm_channel._carry_out(command)
    assert (result.data, result.error, result.able, result.success) == (None, "", True, True)


def test_a_preserver_that_returns_too_much_is_refused():
    code = ship_function(lambda task: {"kept": b"x" * 20_000}, "preserver")
    handled = unpack(preserve(code, pack(SAVED), 1.0, 10_000), Handled)
    assert (handled.data, handled.too_large) == (None, True)


class Taking:
    """A supervisor that takes parts, as many as it is told."""

    def __init__(self, parts):
        self.left, self.parts, self.done = parts, [], []
        self.result_part = SimpleNamespace(remote=self._part)
        self.command_done = SimpleNamespace(remote=lambda *answer: self.done.append(answer))

    def _part(self, command_id, begin, data):
        assert begin == sum(map(len, self.parts))
        self.left -= 1
        self.parts.append(data)
        return self.left >= 0


def test_a_large_state_is_sent_in_chunks(monkeypatch):
    monkeypatch.setattr(agent_link.ray, "get", lambda ref: ref)
    link = host_of(Large)._sm_channel
    command = Command(command_id=7, epoch=1, kind="save", limit_bytes=11_000_000)
    result = link._carry_out(command)
    link._supervisor = taking = Taking(parts=3)
    link._answer(7, result)
    ((command_id, answer),) = taking.done
    told = unpack(answer, CommandResult)
    assert (command_id, told.data, told.part_bytes) == (7, None, len(result.data))
    assert cloudpickle.loads(b"".join(taking.parts)) == b"x" * 10_000_000
    assert max(map(len, taking.parts)) <= 4 * 1024 * 1024
    link._supervisor = refusing = Taking(parts=1)
    link._answer(7, result)
    assert (len(refusing.parts), refusing.done) == (2, []), "nobody waits any more"


class Elastic:
    """Remembers what it was told of its gang."""

    def __init__(self, name, labels):
        self.told = []

    def on_members_changed(self, ranks):
        self.told.append(ranks)


def test_an_object_is_told_of_a_change_of_its_gang_once():
    host = host_of(Elastic)
    for number, ranks in enumerate([(0, 1, 2), (0, 1, 2), (0, 1), (0, 1, 2)]):
        command = Command(command_id=number, epoch=1, kind="members", ranks=ranks)
        assert host._sm_channel._carry_out(command).success
    assert host._sm_object.told == [[0, 1, 2], [0, 1], [0, 1, 2]]
