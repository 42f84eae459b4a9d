"""The runner of a job, with real drivers and without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from schedulemesh.api.logs import TaskKey
from schedulemesh.core.agent import job_runner
from schedulemesh.core.agent.job_folders import LogWriter, job_folder, read_log
from schedulemesh.core.agent.job_runner import JobRunner, driver_environment
from schedulemesh.errors import JobFailedError
from schedulemesh.protocol.agents import JobStart
from schedulemesh.protocol.job_command import JobCommand


class Channel:
    """The control channel of the runner's process."""

    def __init__(self):
        self.cancelled = []
        #: Seconds since each save that was reported; and whether the supervisor takes reports.
        self.saved, self.takes = [], True

    def work_saved(self, ago_s):
        self.saved.append(ago_s)
        return self.takes

    def note_cancelled(self, task_id):
        self.cancelled.append(task_id)


@pytest.fixture
def channel(monkeypatch):
    found = Channel()
    monkeypatch.setattr(job_runner, "current", lambda: found)
    monkeypatch.setattr(job_runner, "ray_address", lambda: "10.0.0.1:6379")
    monkeypatch.setattr(job_runner, "node_id", lambda: "node")
    return found


@pytest.fixture
def make(tmp_path, channel):
    """Makes the runner of a script."""

    def made(script, attempt=1, name="a", placement=None, **command):
        file = tmp_path / "driver.py"
        file.write_text(textwrap.dedent(script))
        job = JobStart(
            task_id="t",
            attempt=attempt,
            scheduler="s",
            namespace="n",
            owner="n/a#1",
            folder=str(tmp_path),
            **(placement or {}),
        )
        given = {"entrypoint": (sys.executable, str(file)), **command}
        return JobRunner(name, {}, JobCommand(**given), job=job)

    return made


@pytest.fixture
def log(tmp_path):
    """What the driver has written."""

    def found(attempt=None, name="a"):
        key = TaskKey(
            root=str(tmp_path), namespace="n", scheduler="s", task_id="t", agent_name=name
        )
        piece = read_log(job_folder(key), attempt, 0, 10**6)
        return "" if piece is None else piece.data.decode()

    return found


class Run(threading.Thread):
    """A run in the background, as the control thread sees it."""

    def __init__(self, runner):
        super().__init__(daemon=True)
        self.runner, self.outcome = runner, None
        self.start()

    def run(self):
        try:
            self.outcome = self.runner.run_driver()
        except JobFailedError as error:
            self.outcome = error

    def ended(self):
        self.join(30)
        assert not self.is_alive()
        return self.outcome


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # between two looks at what has no event


def test_a_driver_runs_to_its_end_and_its_output_is_kept(make, log, channel):
    assert make("print('out'); import sys; print('err', file=sys.stderr)").run_driver() == {
        "exit_code": 0,
        "attempt": 1,
        "node_id": "node",
    }
    assert log() == "out\nerr\n"
    assert channel.cancelled == []


def test_all_that_a_driver_has_written_is_kept_however_long_that_takes(make, log, monkeypatch):
    written = LogWriter.write

    def slow(self, data):
        time.sleep(0.3)  # as on a busy disk, or where the process stands still
        written(self, data)

    monkeypatch.setattr(LogWriter, "write", slow)
    monkeypatch.setattr(job_runner, "_OUTPUT_S", 0.05)
    # It gives up after half a minute, as otherwise, also where this process stands still for a second.
    monkeypatch.setattr(job_runner, "_OUTPUT_LOOKS", 600)
    make("print('x' * 100_000); print('end')").run_driver()
    assert log() == "x" * 100_000 + "\nend\n"


def test_a_process_that_is_left_behind_and_writes_on_is_not_waited_for(make, log):
    writes = ["sh", "-c", "while :; do echo more; sleep 0.001; done"]
    # In one piece: ``print`` writes the end of the line by itself, and the process may write in between.
    tells = f"import os, subprocess; os.write(1, b'%d\\n' % subprocess.Popen({writes}).pid)"
    make(tells).run_driver()
    (pid,) = (word for word in log().split() if word.isdigit())
    os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("print('why'); raise SystemExit(3)", 3, "exit code 3; the last line of its log: why"),
        ("import os; os.kill(os.getpid(), 9)", -9, "the driver ended with SIGKILL$"),
    ],
)
def test_a_driver_that_fails_tells_how_it_ended(make, script, code, said):
    with pytest.raises(JobFailedError, match=said) as failed:
        make(script).run_driver()
    assert (failed.value.exit_code, failed.value.task_id) == (code, "t")


def test_a_driver_that_is_killed_behind_a_shell_names_the_signal(make):
    with pytest.raises(JobFailedError, match=r"exit code 137 \(SIGKILL") as failed:
        make("", entrypoint="sh -c 'kill -9 $$'; exit $?").run_driver()
    assert failed.value.exit_code == 137


def test_a_string_is_run_by_the_shell_and_a_list_is_not(make, log):
    make("", entrypoint="echo one && echo two").run_driver()
    make("", attempt=2, entrypoint=("echo", "one && echo two")).run_driver()
    assert log(1) == "one\ntwo\n"
    assert log(2) == "one && echo two\n"


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_started_fails_as_in_a_shell(make, command, code):
    with pytest.raises(JobFailedError, match=f"cannot be started: .*: '{command} x'") as failed:
        make("", entrypoint=(command, "x")).run_driver()
    assert failed.value.exit_code == code


MEANWHILE = "processes on this node meanwhile because memory was short)"


@pytest.mark.parametrize(
    ("code", "killed", "how"),
    [
        (-9, 0, "the driver ended with SIGKILL"),
        (-9, 2, f"the driver ended with SIGKILL (the kernel killed 2 {MEANWHILE}"),
        (-15, 2, "the driver ended with SIGTERM"),
        (1, 2, "the driver ended with exit code 1"),
        (137, 0, "the driver ended with exit code 137 (SIGKILL)"),
        (137, 1, f"the driver ended with exit code 137 (SIGKILL; the kernel killed 1 {MEANWHILE}"),
        (139, 1, "the driver ended with exit code 139 (SIGSEGV)"),
        (143, 2, "the driver ended with exit code 143 (SIGTERM)"),
        (128, 2, "the driver ended with exit code 128"),
        (160, 2, "the driver ended with exit code 160"),
        (193, 2, "the driver ended with exit code 193"),
    ],
)
def test_a_driver_that_was_killed_is_told_with_what_the_kernel_killed(code, killed, how):
    assert job_runner._failure(code, "", killed) == how


@pytest.mark.parametrize(
    ("text", "count"), [("pgfault 7\noom_kill 3\n", 3), ("pgfault 7\n", 0), ("", 0)]
)
def test_the_kernel_says_how_many_processes_it_has_killed(tmp_path, text, count):
    file = tmp_path / "vmstat"
    file.write_text(text)
    assert job_runner.oom_kills(file) == count
    assert job_runner.oom_kills(tmp_path / "none") == 0


def test_the_failure_of_a_command_that_is_too_long_says_so_briefly(make):
    with pytest.raises(JobFailedError, match="Argument list too long") as failed:
        make("", entrypoint=("echo", "y" * 200_000)).run_driver()
    assert failed.value.exit_code == 126
    assert len(str(failed.value)) < 400


def test_the_driver_finds_its_task_and_the_cluster(make, log, monkeypatch):
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", "secret")
    # Ray has set the variables of the runtime environment, with what they refer to.
    for name, value in {"ALL": "2/bin", "SCHEDULEMESH_OWN": "3", "OMP_NUM_THREADS": "4"}.items():
        monkeypatch.setenv(name, value)
    chosen = {"ALL": "${TWO}/bin", "SCHEDULEMESH_OWN": "3", "OMP_NUM_THREADS": "4"}
    make(
        "import json, os; print(json.dumps(dict(os.environ)))",
        attempt=4,
        placement={"label_selector": {"zone": "a"}, "alternative": 2},
        env={"OWN": "1"},
        runtime_env={"env_vars": chosen},
    ).run_driver()
    found = json.loads(log())
    wanted = {
        "SCHEDULEMESH_TASK_ID": "t",
        "SCHEDULEMESH_ATTEMPT": "4",
        "SCHEDULEMESH_LABEL_SELECTOR": '{"zone": "a"}',
        "SCHEDULEMESH_ALTERNATIVE": "2",
        "SCHEDULEMESH_NAME": "s",
        "SCHEDULEMESH_NAMESPACE": "n",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "OWN": "1",
        "ALL": "2/bin",
        "SCHEDULEMESH_OWN": "3",
        "OMP_NUM_THREADS": "4",
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert "SCHEDULEMESH_TOKEN" not in found
    config = json.loads(found["RAY_JOB_CONFIG_JSON_ENV_VAR"])
    assert config["metadata"]["schedulemesh_actor"] == "n/a#1"
    # Each worker has them set with what they refer to on its own node.
    assert config["runtime_env"] == {"env_vars": chosen}


def test_what_belongs_to_the_actor_alone_is_not_passed_on():
    actor = {"PATH": "/bin", "RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "SCHEDULEMESH_TOKEN": "x"}
    assert driver_environment(actor, {}) == {"PATH": "/bin"}
    assert driver_environment(actor, {"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"


RUNS_ON = "import time; print('begun', flush=True); time.sleep(60)"  # there to be ended
NOTICED = """
    import sys, time
    from schedulemesh import job
    print(job.task_id(), job.attempt(), job.checkpoint_dir().is_dir(), job.preempted(), flush=True)
    while not job.preempted():
        time.sleep(0.01)  # between two looks, as a training has between two steps
    print("left", 0 < job.seconds_left() <= 30, flush=True)
"""
CALLED = """
    import time
    from schedulemesh import job
    done = []
    job.on_preemption(lambda seconds: done.append(seconds))
    job.on_preemption(lambda seconds: print("called", 0 < seconds <= 30, flush=True))
    print("ready", flush=True)
    while not done:
        time.sleep(0.01)  # the signal interrupts it
"""
WITH_ANOTHER_TIME = """
    import time
    from schedulemesh import job
    print("ready", flush=True)
    while not job.preempted():
        time.sleep(0.01)  # between two looks
    time.time = lambda: 4e9
    print("left", 0 < job.seconds_left() <= 30, flush=True)
"""
IN_A_THREAD = """
    import threading, time
    from schedulemesh import job
    called = threading.Event()
    threading.Thread(target=lambda: job.on_preemption(lambda seconds: called.set())).start()
    print("ready", flush=True)
    called.wait()
    print("called True", flush=True)
"""


@pytest.mark.parametrize(
    ("script", "before", "after"),
    [
        (NOTICED, "t 1 True False", "left True"),
        (WITH_ANOTHER_TIME, "ready", "left True"),
        (CALLED, "ready", "called True"),
        (IN_A_THREAD, "ready", "called True"),
    ],
)
def test_the_notice_reaches_the_driver_and_its_exit_is_not_its_end(
    make, log, channel, script, before, after
):
    runner = make(script)
    run = Run(runner)
    until(lambda: before in log())
    began = time.monotonic()

    runner.on_preemption_notice(30.0)

    assert time.monotonic() - began < 20, "the grace did not end with the driver"
    assert run.ended()["exit_code"] == 0
    assert after in log()
    assert channel.cancelled == ["t"]


@pytest.mark.parametrize("step", ["_give_notice", "_signal_those_who_asked"])
def test_a_driver_has_its_time_also_where_it_cannot_be_told(make, log, channel, monkeypatch, step):
    runner = make(RUNS_ON)
    monkeypatch.setattr(runner, step, Mock(side_effect=OSError("no space left")))
    run = Run(runner)
    until(lambda: "begun" in log())
    began = time.monotonic()
    runner.on_preemption_notice(0.2)
    assert time.monotonic() - began >= 0.2
    runner.cancel("t")
    run.ended()
    assert channel.cancelled == ["t"]


def test_a_notice_that_comes_before_the_driver_is_found_by_it(make, log, channel):
    runner = make(NOTICED)
    noticed = threading.Thread(target=runner.on_preemption_notice, args=(30.0,))
    noticed.start()
    until(lambda: runner._deadline is not None)
    assert Run(runner).ended()["exit_code"] == 0
    noticed.join(30)
    assert "t 1 True True" in log()
    assert channel.cancelled == ["t"]


@pytest.mark.parametrize("jump_s", [-36000.0, 36000.0])
def test_the_grace_of_a_job_is_as_long_as_it_is_when_the_system_clock_is_set(
    make, monkeypatch, jump_s
):
    runner, times = make("pass"), iter([time.time()])
    clocks = SimpleNamespace(
        monotonic=time.monotonic, time=lambda: next(times, time.time() + jump_s)
    )
    monkeypatch.setattr(job_runner, "time", clocks)
    waited = []
    monkeypatch.setattr(runner._ended, "wait", waited.append)
    runner.on_preemption_notice(20.0)
    assert [0.0 < seconds <= 20.0 for seconds in waited] == [True]


def test_a_job_does_not_find_the_notice_of_an_earlier_one(make, log, channel):
    earlier = make(NOTICED)
    run = Run(earlier)
    until(lambda: "t 1 True False" in log())
    earlier.on_preemption_notice(30.0)
    run.ended()

    asks = "from schedulemesh import job; print(job.preempted(), job.seconds_left())"
    assert make(asks, name="another").run_driver()["exit_code"] == 0
    assert log(name="another") == "False None\n"
    # The same attempt, whose agent was built again.
    assert make(asks).run_driver()["exit_code"] == 0
    assert log().endswith("\nFalse None\n")
    assert channel.cancelled == ["t"]


def test_a_driver_that_does_not_look_may_complete_in_its_grace(make, log, channel):
    # It ends by itself soon after the notice.
    script = "import time; print('begun', flush=True); time.sleep(0.3)"  # its work
    runner = make(f"{script}; print('done')")
    run = Run(runner)
    until(lambda: "begun" in log())
    runner.on_preemption_notice(30.0)
    assert run.ended()["exit_code"] == 0
    assert channel.cancelled == []


def test_a_driver_that_does_not_look_is_not_killed_by_the_notice(make, log, channel):
    runner = make(RUNS_ON)
    run = Run(runner)
    until(lambda: "begun" in log())
    runner.on_preemption_notice(0.2)
    assert run.is_alive()

    assert runner.cancel("t") == {"success": True}

    assert run.ended()["exit_code"] == -signal.SIGTERM
    assert channel.cancelled == ["t"]


def test_cancelling_ends_the_whole_process_group(make, log):
    runner = make("""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # there to be ended
        print(child.pid, flush=True)
        child.wait()
    """)
    run = Run(runner)
    until(lambda: log().strip().isdigit())
    child = int(log())
    runner.cancel("t")
    run.ended()
    until(lambda: not _runs(child))


SAVES_FOR_A_WHILE = """
import pathlib, signal, sys, time

def save(*_):
    time.sleep(3)  # longer than output of what a driver has left behind is waited for
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)  # there to be ended
"""


def test_what_a_shell_has_started_has_its_time_to_save_though_the_shell_ends_at_once(
    make, log, tmp_path
):
    saved = tmp_path / "saved"
    command = f"{sys.executable} {tmp_path / 'driver.py'} {saved} && echo done"
    runner = make(SAVES_FOR_A_WHILE, entrypoint=("sh", "-c", command))
    run = Run(runner)
    until(lambda: "ready" in log())
    runner.cancel("t")
    assert saved.read_text() == "saved"
    run.ended()


def test_a_process_that_has_ended_and_was_not_waited_for_keeps_nobody_waiting(make, log):
    runner = make(
        """
        import os, signal, subprocess, sys, time
        # In a session of its own, it never waits for its child, which is in the group of the driver.
        program = '''
        import os, time
        print(os.fork() or os._exit(0))
        os.setsid()
        time.sleep(60)
        '''
        process = subprocess.Popen([sys.executable, "-uc", program], stdout=subprocess.PIPE)
        print(process.pid, process.stdout.readline().decode(), flush=True)
        time.sleep(60)  # there to be ended
        """
    )
    run = Run(runner)
    until(lambda: len(log().split()) == 2)
    parent, child = map(int, log().split())
    until(lambda: not _runs(child))
    runner.cancel("t")
    run.ended()
    os.kill(parent, signal.SIGKILL)


def test_a_run_that_is_cancelled_before_it_began_starts_nothing(make, log, channel):
    runner = make("print('ran')")
    runner.cancel("t")
    runner.run_driver()
    assert log() == ""
    assert channel.cancelled == ["t"]


def test_the_checkpoint_folder_survives_attempts(make, log, tmp_path):
    script = """
        from schedulemesh import job
        file = job.checkpoint_dir() / "n"
        file.write_text(str(job.attempt() + (int(file.read_text()) if file.exists() else 0)))
        print(file.read_text())
    """
    make(script, 1).run_driver()
    make(script, 2).run_driver()
    make(script, 3, checkpoint_dir=str(tmp_path / "shared")).run_driver()
    assert [log(n) for n in (1, 2, 3)] == ["1\n", "3\n", "3\n"]
    assert (tmp_path / "shared" / "n").exists()


def test_the_folder_of_a_silent_job_stays_new(make, log, tmp_path, monkeypatch):
    monkeypatch.setattr(job_runner, "_ALIVE_S", 0.05)
    runner = make(RUNS_ON)
    run = Run(runner)
    until(lambda: "begun" in log())
    found = "jobs/*/*/*/*/attempt-1/alive"
    until(lambda: list(tmp_path.glob(found)))  # a thread makes it
    (alive,) = tmp_path.glob(found)
    os.utime(alive, (0, 0))
    until(lambda: alive.stat().st_mtime > 0)
    runner.cancel("t")
    run.ended()


def test_output_of_a_process_that_the_driver_leaves_behind_is_not_waited_for(make, log):
    runner = make("""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # longer than is waited
        print("done")
    """)
    began = time.monotonic()
    runner.run_driver()
    assert time.monotonic() - began < 50
    assert log() == "done\n"


def test_outside_of_a_job_there_is_none():
    program = """
import sys
from schedulemesh import job
print(job.task_id(), job.attempt(), job.checkpoint_dir(), job.preempted(), job.seconds_left())
job.on_preemption(print)
print("ray" in sys.modules, "msgspec" in sys.modules)
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULEMESH_")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean
    )
    assert done.stdout.split() == ["None", "1", "None", "False", "None", "False", "False"]


def _runs(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


WRITES = """
import os, sys, time, pathlib
from schedulemesh import job
folder = job.checkpoint_dir()
print("ready", flush=True)
while not job.preempted():
    time.sleep(0.01)  # between two looks at the notice, which has no event
SAVE
"""


@pytest.mark.parametrize(
    ("save", "reports"),
    [
        ("(folder / 'model.pt').write_text('1')", 1),
        ("job.saved()", 1),
        ("(folder / 'rank-0').mkdir()", 0),
        ("(folder / 'old').unlink()", 0),
        ("pass", 0),
    ],
)
def test_what_a_driver_saves_upon_the_notice_is_reported(make, log, channel, save, reports):
    runner = make(WRITES.replace("SAVE", save))
    old = runner._checkpoints / "old"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier attempt")
    os.utime(old, (1.0, 1.0))
    run = Run(runner)
    until(lambda: "ready" in log())
    runner.on_preemption_notice(30.0)
    run.ended()
    assert len(channel.saved) == reports
    assert all(0.0 <= ago_s < 30.0 for ago_s in channel.saved)
    runner.cancel("t")
    assert len(channel.saved) == reports, "it is reported once"


def test_what_a_driver_saves_upon_sigterm_is_reported(make, log, channel):
    runner = make("""
        import signal, sys, time
        from schedulemesh import job

        def save(*_):
            (job.checkpoint_dir() / "model.pt").write_text("1")
            sys.exit(1)

        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(60)  # there to be ended
        """)
    run = Run(runner)
    until(lambda: "ready" in log())
    runner.on_preemption_notice(0.0)
    assert channel.saved == []
    runner.cancel("t")
    run.ended()
    assert len(channel.saved) == 1


def test_a_save_is_reported_while_the_driver_runs_until_the_supervisor_has_taken_it(
    make, log, channel, monkeypatch
):
    monkeypatch.setattr(job_runner, "_SAVED_S", 0.01)
    channel.takes = False
    runner = make(WRITES.replace('print("ready"', 'job.saved(); print("ready"'))
    run = Run(runner)
    until(lambda: len(channel.saved) > 1)
    channel.takes = True
    taken = len(channel.saved) + 1
    until(lambda: len(channel.saved) >= taken)
    runner.cancel("t")
    run.ended()
    assert len(channel.saved) <= taken + 1


class SetClock:
    """The time for the runner, whose wall clock is set during the test. Files have the time of the test."""

    def __init__(self):
        self.ahead_s = 0.0

    def time(self):
        return time.time() + self.ahead_s

    def monotonic(self):
        return time.monotonic()


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0, 0.0])
def test_a_save_counts_after_the_clock_was_set(make, channel, monkeypatch, ahead_s):
    clock = SetClock()
    monkeypatch.setattr(job_runner, "time", clock)
    clock.ahead_s = ahead_s
    runner = make("")
    runner._checkpoints.mkdir(parents=True)
    report = runner._saved.report

    def save(name):
        file = runner._checkpoints / name
        file.write_text("1")
        os.utime(file, (clock.time(), clock.time()))

    save("first")
    report()
    assert len(channel.saved) == 1
    clock.ahead_s = 0.0
    report()
    assert len(channel.saved) == 1, "what was saved before is no news"
    save("second")
    report()
    assert len(channel.saved) == 2
    assert all(0.0 <= ago_s < 30.0 for ago_s in channel.saved)


def test_what_was_saved_before_the_attempt_is_no_news_when_the_clock_is_set_forward_and_back(
    make, channel, monkeypatch
):
    clock = SetClock()
    monkeypatch.setattr(job_runner, "time", clock)
    runner = make("")
    old = runner._checkpoints / "old"
    old.parent.mkdir(parents=True)
    old.write_text("1")
    os.utime(old, (time.time() - 60.0, time.time() - 60.0))
    for clock.ahead_s in (3600.0, 0.0, -30.0, 0.0):
        runner._saved.report()
    assert channel.saved == []


@pytest.mark.parametrize(
    ("attempt", "file", "restored"),
    [
        (1, "checkpoint/step-7/a", None),
        (2, "checkpoint/step-7/a", True),
        (2, "checkpoint", False),
        (2, "attempt-1/saved", True),
        (2, "attempt-1/signals", False),
    ],
)
def test_a_runner_says_whether_its_attempt_begins_with_what_was_saved(
    make, attempt, file, restored
):
    runner = make("", attempt=attempt)
    folder = runner._folder if file.startswith("attempt") else runner._checkpoints.parent
    path = folder / file
    path.parent.mkdir(parents=True)
    path.write_text("1") if path.name in ("a", "saved") else path.mkdir()
    assert runner.begins_from_saved() is restored


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_no_driver_runs_where_another_user_could_change_its_checkpoints(make, tmp_path):
    runner = make("raise SystemExit(0)")
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        runner.run_driver()
    assert not (tmp_path / "jobs").exists()
