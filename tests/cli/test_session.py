"""A command under a lease: what it is told, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from schedulemesh.cli.exits import ExitCode
from schedulemesh.cli.terminal import Session
from schedulemesh.core.agent.process_marks import living


class Lease:
    """A lease that is evicted or ended when a test says so."""

    def __init__(self):
        self.state, self.ends_at = "running", None

    def preempted(self):
        return self.ends_at is not None

    def grace_left(self):
        return 0.0 if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())


@pytest.fixture
def lease():
    return Lease()


@pytest.fixture
def shell(lease, tmp_path, monkeypatch):
    """Runs a script of the shell as a session in a folder."""
    monkeypatch.chdir(tmp_path)

    def run(script):
        return Session(lease, ["sh", "-c", script], {**os.environ, "COLOUR": "blue"}).run()

    return run


def when(condition, action):
    """Do something in another thread once a condition holds."""

    def wait():
        while not condition():
            time.sleep(0.02)  # between two looks at what has no event
        action()

    threading.Thread(target=wait, daemon=True).start()


def test_the_exit_code_is_that_of_the_command(shell, tmp_path):
    assert shell('echo "$COLOUR" > seen; exit 7') == 7
    assert (tmp_path / "seen").read_text() == "blue\n"
    assert shell("kill -9 $$") == 128 + signal.SIGKILL


def test_what_the_command_leaves_behind_is_ended(shell, tmp_path):
    assert shell("nohup sleep 600 > /dev/null 2>&1 & echo $! > pid") == 0
    assert not living(int((tmp_path / "pid").read_text()))


def test_the_command_is_told_of_an_eviction_and_may_save(shell, lease, tmp_path, capfd):
    when((tmp_path / "runs").exists, lambda: setattr(lease, "ends_at", time.monotonic() + 30))
    script = "trap 'echo saved > state; exit 3' TERM; touch runs; while :; do sleep 0.1; done"
    assert shell(script) == 3
    assert (tmp_path / "state").read_text() == "saved\n"
    assert "the lease is evicted: the command is ended in 30 s" in capfd.readouterr().err


def test_a_command_that_does_not_end_is_killed_before_the_grace_is_over(shell, lease, tmp_path):
    when((tmp_path / "runs").exists, lambda: setattr(lease, "ends_at", time.monotonic() + 2))
    assert shell("trap '' TERM HUP; touch runs; while :; do sleep 0.1; done") == 128 + 9


def test_the_command_ends_with_a_lease_that_somebody_releases(shell, lease, tmp_path, capfd):
    when((tmp_path / "runs").exists, lambda: setattr(lease, "state", "cancelled"))
    assert shell("touch runs; exec sleep 600") == 128 + signal.SIGTERM
    assert "the lease has ended (cancelled)" in capfd.readouterr().err


def test_ctrl_c_is_the_commands(shell, tmp_path):
    when((tmp_path / "runs").exists, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert shell("touch runs; sleep 1; exit 5") == 5


def test_a_session_whose_process_is_killed_hangs_up(tmp_path):
    script = (
        # A run under nohup ignores the signal, and what it starts as well.
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "from schedulemesh.cli.terminal import Session; "
        "from tests.cli.test_session import Lease; "
        f"Session(Lease(), ['sh', '-c', 'echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; "
        "exec sleep 600'], dict(os.environ)).run()"
    )
    session = subprocess.Popen([sys.executable, "-c", script])
    while not (tmp_path / "pid").exists():
        assert session.poll() is None
        time.sleep(0.02)  # between two looks at what has no event
    session.kill()
    session.wait()
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 60
    while living(pid):
        assert time.monotonic() < end
        time.sleep(0.02)  # between two looks at what has no event


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "0", "--cpus", "0", "--", "true"), "say --gpus, --cpus or --memory"),
        (("--", "no-such-command"), "there is no command 'no-such-command'"),
        (("--memory", "lots", "--", "true"), "--memory"),
        (("--grace", "soon", "--", "true"), "--grace"),
        (("--label", "team", "--", "true"), "a label is LABEL=VALUE"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_is_leased(run, words, said):
    done = run("lease", "--pool", "p", *words)
    assert (done.exit_code, said in done.stderr) == (ExitCode.USAGE, True), done.stderr
