"""Tasks in the agent's process: run once, whatever they return or raise, with what is kept of it."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray import cloudpickle

from schedulemesh.client.task_results import result_of, value_of
from schedulemesh.core.agent.function_agent import FunctionAgent
from schedulemesh.core.transport.user_code import ship_arguments
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import ResultNotLoadableError, TaskFailedError
from schedulemesh.protocol.agents import Command, KeptResult, RunOrder, RunReport, pack, unpack
from schedulemesh.protocol.answers import TaskResult
from tests.core.test_agent_host import host_of, no_ray  # noqa: F401  # a fixture


class OwnError(Exception):
    """Of the user."""


class Works:
    def __init__(self, name, labels):
        self.calls = 0
        self.go_on = threading.Event()

    def run(self, *args, **kwargs):
        self.calls += 1
        return self.calls, args, kwargs

    def waits(self):
        self.calls += 1
        self.go_on.wait(60)
        return self.calls

    def fails(self, error):
        raise error

    def unpicklable(self):
        return threading.Lock()

    def large(self, size):
        return bytes(size)

    def cancel(self, task_id):
        return {"success": task_id != "no"}


class WorksAsync(Works):
    async def later(self):
        self.calls += 1
        await asyncio.sleep(0)
        return self.calls


def order(method="run", *args, task_id="t", limit_bytes=100_000, **kwargs):
    arguments = ship_arguments(args, kwargs).data if args or kwargs else None
    given = {"task_id": task_id, "method": method, "limit_bytes": limit_bytes}
    return pack(RunOrder(arguments=arguments, **given))


def reported(host, *args, **kwargs):
    return unpack(host.schedulemesh_run(order(*args, **kwargs)), RunReport)


def kept(report):
    return unpack(report.kept, KeptResult)


def result(report):
    answer = TaskResult(state="completed", error=report.error, kept=report.kept or None)
    return value_of("t", answer, cloudpickle.loads)


def test_a_task_is_run_once_however_often_it_is_ordered():
    host = host_of(Works)
    first = reported(host, "run", 1, two=2)
    assert reported(host, "run", 1, two=2) == first
    assert result(first) == (1, (1,), {"two": 2})
    assert result(reported(host, task_id="other")) == (2, (), {})


def test_the_report_of_a_run_that_has_ended_can_be_asked_for_beside_the_methods():
    host = host_of(Works)

    def answered():
        command = Command(command_id=1, epoch=1, kind="report", task_id="t")
        return host._sm_channel._carry_out(command).data

    assert answered() is None
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(reported, host, "waits")
        assert answered() is None
        host._sm_object.go_on.set()
        report = running.result(60)
    assert unpack(answered(), RunReport) == report


def test_a_second_order_while_it_runs_waits_for_the_same_report():
    host = host_of(Works)
    with ThreadPoolExecutor(2) as threads:
        reports = [threads.submit(reported, host, "waits") for _ in range(2)]
        host._sm_object.go_on.set()
        first, second = (report.result(60) for report in reports)
    assert first == second
    assert host._sm_object.calls == 1
    assert host._sm_channel.running.now == 0


def test_coroutines_are_awaited_and_run_once():
    host = host_of(WorksAsync)

    async def story():
        return await asyncio.gather(*(host.schedulemesh_run(order("later")) for _ in range(2)))

    first, second = asyncio.run(story())
    assert first == second
    assert result(unpack(first, RunReport)) == 1


@pytest.mark.parametrize(
    "error", [OwnError("no"), SystemExit("no"), KeyboardInterrupt("no"), StopIteration("no")]
)
def test_what_it_raises_is_kept_with_its_traceback(error):
    report = reported(host_of(Works), "fails", error)
    assert report.reason is TaskEndReason.RUN_RAISED
    assert report.error.endswith(f"{type(error).__name__}: no")
    assert "raise error" in kept(report).text
    expected = OwnError if isinstance(error, OwnError) else TaskFailedError
    with pytest.raises(expected, match="no") as raised:
        result(report)
    cause = raised.value.__cause__ or raised.value
    assert "raise error" in str(cause)


def test_an_exception_that_cannot_be_pickled_is_kept_as_text():
    class Unpicklable(OwnError):
        def __reduce__(self):
            raise TypeError("never")

    def fails():
        raise Unpicklable("no")

    host = host_of(Works)
    host._sm_object.local = fails
    report = reported(host, "local")
    assert kept(report).exception is None
    with pytest.raises(TaskFailedError, match="Unpicklable: no"):
        result(report)


def test_a_result_that_cannot_be_pickled_is_not_kept():
    report = reported(host_of(Works), "unpicklable")
    assert report.reason is TaskEndReason.RESULT_NOT_KEPT
    assert "unpicklable() returned cannot be kept" in kept(report).text


@pytest.mark.parametrize(("size", "reason"), [(900, None), (1000, "result_too_large")])
def test_a_result_above_the_limit_is_not_kept(size, reason):
    report = reported(host_of(Works), "large", size, limit_bytes=1000)
    assert report.reason == reason
    assert len(report.kept) <= 1000
    assert not reason or "more than 1000 bytes" in report.error


def test_a_large_exception_is_kept_as_text_within_the_limit():
    report = reported(host_of(Works), "fails", OwnError("x" * 5_000), limit_bytes=7_000)
    assert report.reason is TaskEndReason.RUN_RAISED
    assert kept(report).exception is None
    assert len(report.kept) <= 7_000


def test_missing_methods_and_broken_arguments_are_reported():
    assert "AttributeError" in reported(host_of(Works), "nothing").error
    broken = pack(RunOrder(task_id="b", method="run", arguments=b"?", limit_bytes=1000))
    assert unpack(host_of(Works).schedulemesh_run(broken), RunReport).reason == "run_raised"


@pytest.mark.parametrize(("task_id", "cancelled"), [("t", True), ("no", False)])
def test_the_report_says_whether_the_task_was_cancelled(task_id, cancelled):
    host = host_of(Works)
    command = Command(command_id=1, epoch=1, kind="cancel", task_id=task_id)
    host._sm_channel._carry_out(command)
    assert reported(host, task_id=task_id).cancelled is cancelled


def test_a_function_is_called_with_its_arguments_whatever_their_names():
    def add(a, *, name, labels):
        return a + name + labels

    assert FunctionAgent("agent", {}, add, 1, name=2, labels=3).run() == 6


def test_a_coroutine_function_is_run_to_its_end():
    async def later(value):
        await asyncio.sleep(0)
        return value

    assert FunctionAgent("agent", {}, later, "done").run() == "done"


def test_what_cannot_be_loaded_here_is_an_error_that_says_so():
    missing = cloudpickle.dumps(1).replace(b"K\x01", b"cno_such_module\nthing\n")
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(missing)
    value = TaskResult(state="completed", kept=pack(KeptResult(value=missing)))
    with pytest.raises(ResultNotLoadableError, match="no_such_module"):
        value_of("t", value, cloudpickle.loads)
    raised = TaskResult(state="failed", kept=pack(KeptResult(exception=missing, text="Its: text")))
    with pytest.raises(TaskFailedError, match=r"Its: text\n?.*no_such_module"):
        value_of("t", raised, cloudpickle.loads)


def test_a_result_as_callers_see_it():
    refused = Refused(reason=Reason.TASK_NOT_ENDED, error_text="it runs", hint_text="wait")
    answer = result_of("t", refused, cloudpickle.loads)
    assert (answer["success"], answer["reason"], answer["hint"]) == (
        False,
        "task_not_ended",
        "wait",
    )
    completed = TaskResult(state="completed")
    assert result_of("t", completed, cloudpickle.loads)["result"] is None
    failed = TaskResult(state="failed", error="it did not start")
    with pytest.raises(TaskFailedError, match="task 't' failed: it did not start"):
        result_of("t", failed, cloudpickle.loads)
