"""The control channel of an agent's process: nothing but the end of the process ends it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from ray.exceptions import RaySystemError

from schedulemesh.core.agent import control_channel as module
from schedulemesh.core.agent.control_channel import ControlChannel, StartTeller
from schedulemesh.protocol.agents import Command, CommandResult, MessageError, pack
from tests.core.agent_inits import agent_init

INIT = agent_init()


class Supervisor:
    """Fails the first request for commands, gives one command for the second, and ends with the third."""

    def __init__(self, error):
        self._error = error
        self.channel = ControlChannel(INIT, self)
        self.results = []
        self.poll = SimpleNamespace(remote=self._poll)
        self.command_done = SimpleNamespace(remote=lambda *result: self.results.append(result))
        self._polls = iter([self._fail, self._command, self._end])
        #: What each request says has been received.
        self.received = []

    def _poll(self, _name, _incarnation, _key, _usage, received):
        self.received.append(received)
        return next(self._polls)()

    def _fail(self):
        raise self._error

    def _command(self):
        answer = Future()
        answer.set_result(pack([Command(command_id=7, epoch=1, kind="ping")]))
        return SimpleNamespace(future=lambda: answer)

    def _end(self):
        self.channel._ends = True
        raise RaySystemError("the process ends")


@pytest.mark.parametrize(
    "error", [RaySystemError("gone"), MessageError("not packed"), RuntimeError("unexpected")]
)
def test_after_a_failure_of_any_kind_commands_are_requested_again(monkeypatch, caplog, error):
    monkeypatch.setattr(module, "_BEGIN_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    supervisor = Supervisor(error)
    supervisor.channel._listen()
    assert [command_id for command_id, _ in supervisor.results] == [7]
    assert ("RuntimeError: unexpected" in caplog.text) is (type(error) is RuntimeError)
    assert supervisor.received == [[], [], [7]]


def test_a_request_that_fails_is_made_again_with_the_same_confirmation(monkeypatch):
    monkeypatch.setattr(module, "_BEGIN_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    supervisor = Supervisor(RaySystemError("gone"))
    supervisor._polls = iter([supervisor._command, supervisor._fail, supervisor._end])
    supervisor.channel._listen()
    assert supervisor.received == [[], [7], [7]]


@pytest.mark.parametrize("error", [RaySystemError("gone"), RuntimeError("unexpected")])
def test_a_command_whose_result_cannot_be_sent_does_not_cost_the_next_one(monkeypatch, error):
    """Both were given with one answer; nobody gives the second one again."""
    monkeypatch.setattr(module, "_BEGIN_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    supervisor = Supervisor(MessageError("not packed"))
    commands = [Command(command_id=number, epoch=1, kind="ping") for number in (7, 8)]
    answer = Future()
    answer.set_result(pack(commands))
    supervisor._polls = iter([lambda: SimpleNamespace(future=lambda: answer), supervisor._end])

    def done(number, result):
        if number == 7:
            raise error
        supervisor.results.append(number)

    supervisor.command_done = SimpleNamespace(remote=done)
    supervisor.channel._listen()
    assert supervisor.results == [8]


def test_after_a_failure_of_any_kind_the_next_phase_of_a_start_is_told(monkeypatch):
    monkeypatch.setattr(module, "_SLOW_S", 0.001)
    told = []

    def tell(phase, _seconds):
        told.append(phase)
        if phase == "load":
            teller.enter("build")
            raise ValueError("unexpected")
        teller.end()

    teller = StartTeller(tell)
    teller.run()
    assert told == ["load", "build"]


def test_a_command_inside_the_claim_is_started_beside_the_process():
    channel = ControlChannel(INIT, None)
    orders = []
    channel.begin_exec = orders.append
    command = Command(command_id=7, epoch=1, kind="exec", order=b"order")
    assert channel._carry_out(command) == CommandResult()
    assert orders == [b"order"]

    def no_listener(_order):
        raise FileNotFoundError(2, "No such file or directory")

    channel.begin_exec = no_listener
    result = channel._carry_out(command)
    assert (result.success, "FileNotFoundError" in result.error) == (False, True)


def test_the_runner_of_a_job_starts_commands_itself():
    channel = ControlChannel(INIT, None)
    channel.attach(SimpleNamespace(begin_exec=lambda order: {"success": order == b"order"}))
    command = Command(command_id=7, epoch=1, kind="exec", order=b"order")
    assert channel._carry_out(command) == CommandResult()
