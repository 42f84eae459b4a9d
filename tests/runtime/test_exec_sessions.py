"""Commands inside the claims of tasks, as a whole supervisor on a fake backend starts them."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.exec_sessions import ReadExec, StartExec, WriteExec
from schedulemesh.api.leases import ReleaseLease
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import CommandResult
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.runtime.backend import BackendError, NodeView
from schedulemesh.runtime.security.permissions import refusal
from schedulemesh.runtime.services import exec_sessions
from tests.runtime.composition import InThread
from tests.runtime.exec_runner import ExecRunner
from tests.runtime.test_authentication import issue
from tests.runtime.test_jobs import calls_with_a_pool, submit
from tests.server.work import ask, lease


@pytest.fixture
def service(tmp_path, monkeypatch):
    found = InThread(tmp_path / "j.sqlite", tmp_path / "session")
    total = parse_resources({"cpu": 8})
    found.backend.free = [NodeView(node_id="own", total=total, free=total, labels={})]
    # Drivers run until they are ended.
    monkeypatch.setattr(found.backend, "run_task", lambda handle, order: asyncio.Event().wait())
    found.do(found.running.monitor.observe())
    yield found
    found.close()


@pytest.fixture
def calls(service):
    found = calls_with_a_pool(service)
    assert found.update_preemption_policy(allow_exec=True)["success"]
    return found


@pytest.fixture
def runner(calls, service):
    submit(calls)
    found = ExecRunner(service, "j")
    yield found
    found.close()
    service.do(closed(service.backend.cleaners))


async def closed(cleaners):
    for cleaner in cleaners:
        sessions = [*cleaner.relay._sessions.values()]
        cleaner.relay.close()
        await asyncio.gather(*(one._work for one in sessions), return_exceptions=True)


def start(service, *command, request_id="one", **fields):
    return ask(
        service,
        StartExec(task_id="j", command=command or ("true",), request_id=request_id, **fields),
    )


def read(service, **fields):
    request = {"task_id": "j", "session_id": "one", "wait_s": 5.0, **fields}
    return ask(service, ReadExec(**request))


def end(service):
    """How a command ends, once everything was read."""
    part = read(service)
    while not (part.ended and not part.pieces):
        part = read(service, after=part.next)
    return part


def test_a_command_runs_and_its_exit_code_and_streams_are_passed_on(calls, runner):
    script = "echo $CUDA_VISIBLE_DEVICES; echo 错 >&2; exit 3"
    answer = calls.exec_in_task("j", ["sh", "-c", script])
    assert answer == {
        "success": True,
        "exit_code": 3,
        "stdout": "1\n",
        "stderr": "错\n",
        "truncated": False,
    }


def test_it_is_off_unless_the_policy_allows_it(calls, runner):
    assert calls.update_preemption_policy(allow_exec=False)["success"]
    answer = calls.exec_in_task("j", ["true"])
    assert answer["reason"] == "commands_off"
    assert "update_preemption_policy(allow_exec=True)" in answer["error"]
    assert runner.orders == []


def test_it_is_recorded_who_ran_what(calls, runner):
    calls.exec_in_task("j", ["sh", "-c", "echo secret"])
    (row,) = [row for row in calls.audit()["changes"] if row["call"] == "start_exec"]
    assert row["request"] == {"task_id": "j", "command": ["sh", "-c", "echo secret"]}
    assert row["outcome"] == "done"


def test_only_the_owner_and_operators_may(calls, runner, service):
    state = service.running.reactor.state
    owner = state.running.by_id["j"].spec.owner
    issue(service, "mine", Role.SUBMITTER, owner=owner)
    issue(service, "other", Role.SUBMITTER, owner="eve")
    issue(service, "here", Role.POOL_OPERATOR, pools=("p",))
    issue(service, "elsewhere", Role.POOL_OPERATOR, pools=("q",))
    issue(service, "viewer", Role.VIEWER)
    issue(service, "operator", Role.OPERATOR)
    requests = (
        StartExec(task_id="j", command=("true",), request_id="r"),
        ReadExec(task_id="j", session_id="one"),
        WriteExec(task_id="j", session_id="one"),
    )
    for request in requests:
        allowed = {
            name
            for name, token in state.tokens.items()
            if refusal(state, TokenCaller(token=token), request, 0.0) is None
        }
        assert allowed == {"mine", "here", "operator"}


def test_a_task_that_does_not_run_is_refused_with_its_state(calls, runner, service):
    assert calls.exec_in_task("none", ["true"])["reason"] == "task_not_found"
    submit(calls, "waits", resources={"cpu": 4}, queue=True)
    answer = calls.exec_in_task("waits", ["true"])
    assert (answer["reason"], "(it is queued)" in answer["error"]) == ("task_not_running", True)


PRINT_PROCESS = ["sh", "-c", "echo $PROCESS"]


@pytest.fixture
def process(service):
    """Starts processes of tasks, which start commands."""
    processes = []

    def start_process(task_id, process_name=None):
        processes.append(ExecRunner(service, task_id, process_name))
        return processes[-1]

    yield start_process
    for started in processes:
        started.close()
    service.do(closed(service.backend.cleaners))


def test_a_command_in_an_agent_is_started_by_its_process(calls, process):
    agent = calls.submit_task_with_preemption("t", "p", AgentActor, {"cpu": 1}, agent_name="a")
    assert agent["success"]
    runner = process("t")
    assert calls.exec_in_task("t", PRINT_PROCESS)["stdout"] == "a\n"
    assert runner.orders[0].task_id == "t"
    answer = calls.exec_in_task("t", ["true"], rank=1)
    assert answer["reason"] == "task_not_running"
    assert answer["error"] == "task 't' is no gang, so it has no member 1; leave the member out"


def test_a_command_in_a_gang_is_started_by_the_member_that_is_named(calls, process, service):
    gang = calls.submit_task_with_preemption(
        "t", "p", AgentActor, {"cpu": 1}, agent_name="g", replicas=3, min_replicas=2
    )
    assert gang["success"]
    for rank in range(2):
        process("t", f"g-{rank}")
    assert calls.exec_in_task("t", PRINT_PROCESS)["stdout"] == "g-0\n"
    assert calls.exec_in_task("t", PRINT_PROCESS, rank=1)["stdout"] == "g-1\n"
    assert "its members are 0 to 2" in calls.exec_in_task("t", ["true"], rank=3)["error"]
    # The extra member is a task of its own.
    while "g-2" not in service.running.reactor.state.running.by_id:
        service.do(asyncio.sleep(0))
    process("g-2")
    assert calls.exec_in_task("t", PRINT_PROCESS, rank=2)["stdout"] == "g-2\n"
    assert calls.exec_in_task("g-2", PRINT_PROCESS)["stdout"] == "g-2\n"
    assert calls.cancel_task("g-2")["success"]
    answer = calls.exec_in_task("t", ["true"], rank=2)
    assert "member 2 of 't' does not run now" in answer["error"]


def test_the_end_of_a_gang_ends_the_commands_beside_its_members(calls, process, service):
    gang = calls.submit_task_with_preemption(
        "t", "p", AgentActor, {"cpu": 1}, agent_name="g", replicas=2
    )
    assert gang["success"]
    process("t", "g-1")
    request = StartExec(task_id="t", command=("sleep", "600"), rank=1, request_id="one")
    assert ask(service, request).facts["node_id"] == "own"
    assert calls.cancel_task("t")["success"]
    service.do(closed(service.backend.cleaners))
    part = read(service, task_id="t")
    assert part.error.startswith("attempt 1 of task 't' has ended (cancelled_by_request)")


def test_a_driver_that_has_not_begun_is_said(calls, runner):
    runner.result = CommandResult(success=False)
    assert "has not begun yet" in calls.exec_in_task("j", ["true"])["error"]
    runner.result = CommandResult(success=False, error="PermissionError: no")
    assert calls.exec_in_task("j", ["true"])["error"] == "PermissionError: no"


def test_a_runner_that_does_not_answer_is_said(calls, service, monkeypatch):
    monkeypatch.setattr(exec_sessions, "_START_S", 0.05)
    submit(calls)
    answer = calls.exec_in_task("j", ["true"])
    assert answer["reason"] == "task_not_running"
    assert "does not answer" in answer["error"]


def test_a_repeated_start_is_the_same_command(service, runner):
    first, second = (start(service, "sh", "-c", "echo once") for _ in range(2))
    assert first == second
    assert first.facts == {"session_id": "one", "node_id": "own", "attempt": 1}
    assert end(service).exit_code == 0
    assert len(runner.orders) == 1


def test_the_end_of_the_job_ends_the_command_and_is_said(calls, service, runner):
    start(service, "sleep", "600")
    cleaner = service.backend.cleaners[-1]
    assert calls.cancel_task("j")["success"]
    # On a real node the process is ended with the job.
    service.do(asyncio.sleep(0))
    service.loop.call_soon_threadsafe(cleaner.relay._sessions["one"].end)
    part = end(service)
    assert part.exit_code is None
    assert (
        part.error
        == "attempt 1 of job 'j' has ended (cancelled_by_request), and the command with it"
    )
    assert read(service).refused.reason == "task_not_found"


def test_a_lost_node_ends_the_command_and_is_said(service, runner):
    start(service, "sleep", "600")
    service.backend.cleaners[-1].raises = BackendError("the node is dead")
    service.backend.free = []
    part = read(service)
    assert (part.ended, part.exit_code) == (True, None)
    assert part.error == "node own is lost, and the command with it"


def test_a_command_in_a_lease_has_an_actor_that_ends_with_it(calls, service, monkeypatch):
    killed = []
    monkeypatch.setattr(service.backend, "kill_actor", killed.append)
    lease(service, "l")
    answer = calls.exec_in_task("l", ["sh", "-c", "echo $SCHEDULEMESH_LEASE; exit 2"], timeout=20)
    assert (answer["exit_code"], answer["stdout"]) == (2, "l\n")
    (mark,) = service.backend.exec_marks
    while ("terminate", mark) not in service.backend.cleaners[-1].calls:
        service.do(asyncio.sleep(0))
    assert len(killed) == 1
    ask(service, ReleaseLease(task_id="l", request_id="release"))


def test_the_end_of_a_lease_ends_its_commands(calls, service, monkeypatch):
    killed = []
    monkeypatch.setattr(service.backend, "kill_actor", killed.append)
    lease(service, "l")
    request = StartExec(task_id="l", command=("sleep", "600"), request_id="one")
    assert ask(service, request).facts["node_id"] == "own"
    ask(service, ReleaseLease(task_id="l", request_id="release"))
    assert len(killed) == 1
    service.do(closed(service.backend.cleaners))
    part = read(service, task_id="l")
    assert part.exit_code is None
    assert part.error.startswith("lease 'l' has ended (")


def test_a_command_that_is_killed_with_its_lease_ends_with_that(calls, service):
    """Its process may be there to see it killed, and tells of that."""
    lease(service, "l")
    request = StartExec(task_id="l", command=("sh", "-c", "kill -9 $$"), request_id="one")
    assert ask(service, request).facts["node_id"] == "own"
    part = read(service, task_id="l")
    assert part.exit_code == 137
    ask(service, ReleaseLease(task_id="l", request_id="release"))
    second = StartExec(task_id="j", command=("sh", "-c", "sleep 1; kill -9 $$"), request_id="two")
    submit(calls)
    runner = ExecRunner(service, "j")
    ask(service, second)
    assert calls.cancel_task("j")["success"]
    part = read(service, session_id="two")
    assert (part.exit_code, part.error[:21]) == (None, "attempt 1 of job 'j' ")
    runner.close()
    service.do(closed(service.backend.cleaners))


def test_a_session_belongs_to_its_task(calls, service, runner):
    start(service, "sleep", "600")
    assert read(service, task_id="other").refused.reason == "task_not_found"
    request = WriteExec(task_id="other", session_id="one", ends=True)
    assert ask(service, request).refused.reason == "task_not_found"
    assert ask(service, WriteExec(task_id="j", session_id="one", ends=True)).facts == {"taken": 0}
    assert end(service).exit_code is None


def test_their_number_is_limited(service, runner):
    for number in range(exec_sessions.MAX_OF_TASK):
        assert start(service, "sleep", "600", request_id=str(number)).facts
    refused = start(service, request_id="more").refused
    assert refused.reason == "too_many_commands"
    assert "the most are 8 and 64" in refused.error


def test_a_command_that_takes_too_long_is_ended(calls, runner, service):
    with pytest.raises(TimeoutError, match=r"within 0\.2 s, and was ended"):
        calls.exec_in_task("j", ["sleep", "600"], timeout=0.2)


@pytest.mark.parametrize("command", ["nvidia-smi", [], [""], [3], ["a\0"], ["x"] * 1001])
def test_what_is_no_command_is_refused(calls, command):
    with pytest.raises(InvalidRequestError):
        calls.exec_in_task("j", command)
