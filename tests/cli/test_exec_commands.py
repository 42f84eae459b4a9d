"""The commands exec and shell, in processes of their own, over the HTTP API to real commands."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

import pytest

from schedulemesh.cli.exec_commands import _Leaving
from schedulemesh.cli.exits import ExitCode
from schedulemesh.core.agent.process_marks import living
from tests.cli.served import named_by_environment
from tests.core.test_request_service import client
from tests.runtime.exec_runner import ExecRunner
from tests.runtime.test_exec_sessions import closed


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The API of a scheduler with a job that runs."""
    with named_by_environment(tmp_path, monkeypatch) as api:
        service = api.mesh
        monkeypatch.setattr(service.backend, "run_task", lambda *_: asyncio.Event().wait())
        calls = client(service)
        calls.update_preemption_policy(allow_exec=True, cancel_timeout=0.05)
        assert calls.submit_job("j", ["true"], "p", {"cpu": 1})["success"]
        runner = ExecRunner(service, "j")
        api.calls = calls
        yield api
        runner.close()
        service.do(closed(service.backend.cleaners))


def begun(*words, **options):
    words = [sys.executable, "-m", "schedulemesh", *words]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def run(*words, given=b""):
    process = begun(*words)
    out, err = process.communicate(given, timeout=60)
    return process.returncode, out.decode(), err.decode()


def test_streams_and_the_exit_code_are_passed_on(served):
    script = "echo out; echo err >&2; exit 5"
    assert run("exec", "j", "--", "sh", "-c", script) == (5, "out\n", "err\n")


def test_stdin_is_passed_on_where_that_is_asked_for(served):
    text = b"line\n" * 100_000
    assert run("exec", "j", "-i", "--", "wc", "-c", given=text) == (0, "500000\n", "")
    assert run("exec", "j", "--", "wc", "-c", given=text) == (0, "0\n", "")


def test_what_cannot_be_done_is_a_sentence(served):
    code, _, err = run("exec", "none", "--", "true")
    assert (code, err) == (ExitCode.NOT_FOUND, "there is no task 'none'\n")
    code, _, err = run("exec", "j", "--", "no-such-program")
    assert (code, err.startswith("'no-such-program' cannot be started: No such file")) == (
        127,
        True,
    )
    code, _, err = run("shell", "j")
    assert code == ExitCode.USAGE
    assert "use `schedulemesh exec ID --stdin -- COMMAND`" in err
    served.calls.update_preemption_policy(allow_exec=False)
    code, _, err = run("exec", "j", "--", "true")
    assert code == ExitCode.NOT_ALLOWED
    assert "an operator allows them with `schedulemesh policy set allow_exec=true`" in err
    _, _, err = run("exec", "--lang", "zh", "j", "--", "true")
    assert "运维人员可用 `schedulemesh policy set allow_exec=true` 开启" in err


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_command_there(served):
    process = begun("exec", "j", "--", "sh", "-c", "echo $$; exec sleep 600")
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    wait_for_end(pid)


def test_the_end_of_the_job_ends_the_command_with_a_sentence(served):
    process = begun("exec", "j", "--", "sh", "-c", "echo begun; exec sleep 600")
    assert process.stdout.readline() == b"begun\n"
    assert served.calls.cancel_task("j")["success"]
    # Here nobody ends the process with the job.
    served.mesh.do(closed(served.mesh.backend.cleaners))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.decode() == (
        "attempt 1 of job 'j' has ended (cancelled_by_request), and the command with it\n"
    )


class Terminal:
    """A command in a terminal of 20 rows and 70 columns."""

    def __init__(self, *words):
        self.inner, outer = pty.openpty()
        fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("4H", 20, 70, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "schedulemesh", *words],
            stdin=outer,
            stdout=outer,
            stderr=outer,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(outer)
        self.shown = b""

    def until(self, text):
        while text not in self.shown:
            self.shown += os.read(self.inner, 65536)
        return self.shown

    def type(self, text):
        os.write(self.inner, text)

    def end(self):
        with contextlib.suppress(OSError):
            while data := os.read(self.inner, 65536):
                self.shown += data
        os.close(self.inner)
        return self.process.wait(60)


@pytest.fixture
def in_the_background():
    """Processes that this one starts ignore interrupts, as where Ray was started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_background")
def test_a_terminal_is_that_of_the_caller(served):
    terminal = Terminal("shell", "j", "--", "sh")
    terminal.until(b"$ " if os.getuid() else b"# ")
    terminal.type(b"stty size; echo $TERM on $CUDA_VISIBLE_DEVICES\r")
    assert b"20 70" in terminal.until(b"xterm on 1")
    fcntl.ioctl(terminal.inner, termios.TIOCSWINSZ, struct.pack("4H", 33, 99, 0, 0))
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.type(b"while [ \"$(stty size)\" != '33 99' ]; do sleep 0.05; done; echo si''zed\r")
    terminal.until(b"sized")
    # Once it has written, it is what Ctrl-C is for.
    terminal.type(b"sh -c 'echo be\"\"gun; exec sleep 600'\r")
    terminal.until(b"begun")
    terminal.type(b"\x03")
    terminal.type(b"exit 9\r")
    assert terminal.end() == 9


def test_a_terminal_can_be_left(served):
    terminal = Terminal("shell", "j", "--", "sh", "-c", "echo $$; exec sleep 600")
    pid = int(terminal.until(b"\n").split()[0])
    terminal.type(b"\r~.")
    assert terminal.end() == 1
    wait_for_end(pid)


def test_what_leaves_a_terminal_stands_at_the_beginning_of_a_line():
    for typed, leaves in (
        ([b"~."], True),
        ([b"ls\r", b"~", b"."], True),
        ([b"cd ~."], False),
        ([b"a", b"~."], False),
        ([b"~", b"~."], False),
    ):
        leaving = _Leaving()
        assert [leaving.is_in(data) for data in typed][-1] is leaves, typed


def wait_for_end(pid):
    for _ in range(1000):
        if living(pid) is None:
            return
        # No event tells of the end of somebody else's process.
        signal.sigtimedwait((), 0.02)
    raise AssertionError(f"{pid} lives")
