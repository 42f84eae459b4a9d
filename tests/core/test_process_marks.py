"""Marks that processes hand down, on real processes: however they were started, all of them end."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import time

import pytest

from schedulemesh.core.agent import process_marks
from schedulemesh.core.agent.process_marks import (
    JOB_MARK,
    left_behind,
    living,
    mark_of,
    marked,
    terminate,
    terminate_workers,
    workers_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="marks are limits of Linux")

#: All programs here sleep for longer than any test lasts: they are there to be killed.
#: Marks itself, starts something, says so on a line once only that is there, and waits.
PROGRAM = """
import os, subprocess, sys, time
from schedulemesh.core.agent.process_marks import mark_this_process

mark_this_process(int(sys.argv[1]))
{start}
time.sleep(600)  # there to be killed
"""
DOUBLE_FORK = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3, 64):
            try:
                os.close(fd)
            except OSError:
                pass
        time.sleep(600)  # there to be killed
    os._exit(0)
os.wait()
print(0, flush=True)
"""
CLEARED_QUIETLY = """
child = subprocess.Popen(["env", "-i", "setsid", "-f", "sleep", "600"])
child.wait()
print(0, flush=True)
"""
NOTHING = "print(0, flush=True)"
IGNORES = """
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "time.sleep(600)"])  # there to be killed
print(child.pid, flush=True)
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Processes may be slow to end on a busy machine."""
    monkeypatch.setattr(process_marks, "PATIENCE_S", 30.0)


@pytest.fixture
def mark():
    """A mark of this test alone; nothing with it is left behind."""
    made = mark_of("session", "namespace", f"{os.getpid()}-{time.monotonic_ns()}")
    yield made
    process_marks.kill(marked(made))


@pytest.fixture
def started():
    """Starts an agent's process, and returns it once what it started is there."""
    made = []

    def start(mark, what):
        command = [sys.executable, "-c", PROGRAM.format(start=what), str(mark)]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert made[-1].stdout.readline()
        return made[-1]

    yield start
    for process in made:
        process.kill()
        # Not to its end: what a failed test leaves behind holds the pipe, too.
        process.stdout.close()
        process.wait()


def ended(mark):
    return asyncio.run(asyncio.wait_for(terminate(mark), 60.0))


def test_marks_differ_between_clusters_namespaces_and_actors():
    marks = {
        mark_of(*"abc"),
        mark_of(*"xbc"),
        mark_of(*"axc"),
        mark_of(*"abx"),
        mark_of("a", "b", ""),
    }
    assert len(marks) == 5
    assert all(1 << 62 <= mark < 1 << 63 for mark in marks), "it limits nothing"


@pytest.mark.parametrize("start", [DOUBLE_FORK, CLEARED_QUIETLY, IGNORES])
def test_what_a_process_started_ends_with_it(mark, start, started):
    agent = started(mark, start)
    assert len(marked(mark)) == 2
    assert ended(mark) == ()
    assert marked(mark) == []
    assert agent.wait(60.0) == -signal.SIGKILL


@pytest.mark.parametrize("start", [DOUBLE_FORK, CLEARED_QUIETLY, IGNORES])
def test_what_a_killed_process_left_behind_is_found(mark, start, started):
    agent = started(mark, start)
    agent.kill()
    agent.wait()
    (left,) = marked(mark)
    assert ended(mark) == ()
    assert living(left.pid) != left


def test_a_process_that_has_the_id_of_a_marked_one_by_now_is_not_taken_for_it(
    mark, started, monkeypatch
):
    agent = started(mark, NOTHING)
    (found,) = marked(mark)
    assert found.pid == agent.pid

    def living_by_now(pid):
        # Nobody can have the system use an id again: this process loses its mark in place of that.
        _, hard = resource.prlimit(pid, resource.RLIMIT_RTTIME)
        resource.prlimit(pid, resource.RLIMIT_RTTIME, (hard, hard))
        return living(pid)

    monkeypatch.setattr(process_marks, "living", living_by_now)
    assert marked(mark) == []


def test_processes_that_are_stopped_end(mark, started):
    agent = started(mark, IGNORES)
    for process in marked(mark):
        os.kill(process.pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert ended(mark) == ()
    assert time.monotonic() - begun < process_marks.PATIENCE_S
    assert agent.wait(60.0) == -signal.SIGKILL


def test_they_are_killed_once_however_late_the_first_look_is(mark, started, monkeypatch):
    """As where the supervisor stood still meanwhile."""
    monkeypatch.setattr(process_marks, "PATIENCE_S", 0.0)
    monkeypatch.setattr(process_marks, "GRACE_S", 0.0)
    agent = started(mark, IGNORES)
    ended(mark)
    assert agent.wait(30.0) == -signal.SIGKILL


def test_the_agents_own_process_may_exit_by_itself(mark, started, monkeypatch):
    """Ray ends it at the same time, and takes a killed one for a crash."""
    monkeypatch.setattr(process_marks, "GRACE_S", 30.0)
    agent = started(
        mark, "import signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nprint()"
    )

    async def story():
        ending = asyncio.ensure_future(terminate(mark))
        await asyncio.sleep(0)
        agent.terminate()
        assert await ending == ()

    asyncio.run(asyncio.wait_for(story(), 60.0))
    assert agent.wait(60.0) == 7


def test_only_the_dead_leave_something_behind(mark, started):
    agent = started(mark, DOUBLE_FORK)
    assert left_behind({mark: agent.pid}) == {}
    agent.kill()
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    assert left_behind({mark: agent.pid}) == {mark: marked(mark)}, "also before it is waited for"
    agent.wait()
    (left,) = marked(mark)
    assert left_behind({mark: left.pid}) == {}, "that is the agent's own process"
    # It is dead when this is ready; on a busy machine that takes longer than looks at it would be patient.
    end = os.pidfd_open(left.pid)
    process_marks.kill([left])
    assert select.select([end], [], [], 30.0)[0]
    os.close(end)
    assert left_behind({mark: agent.pid}) == {}


def test_processes_of_others_are_left_alone(mark, started):
    other = mark_of("session", "namespace", f"other-{time.monotonic_ns()}")
    neighbour = started(other, NOTHING)
    started(mark, NOTHING)
    assert ended(mark) == ()
    assert neighbour.poll() is None
    assert ended(other) == ()


def test_a_process_that_does_not_end_is_named(mark, monkeypatch, started):
    agent = started(mark, NOTHING)
    monkeypatch.setattr(process_marks, "PATIENCE_S", 0.3)
    monkeypatch.setattr(process_marks, "kill", lambda processes: None)
    assert ended(mark) == (agent.pid,)


def test_a_zombie_process_does_not_count(mark, started):
    agent = started(mark, NOTHING)
    agent.kill()
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    assert living(agent.pid) is None
    assert ended(mark) == ()


#: A worker of a job that was started with the mark in its environment, and a daemon that it leaves.
WORKER = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
os.wait()
print(0, flush=True)
time.sleep(600)  # there to be killed
"""


@pytest.fixture
def worker():
    """Starts a worker of a job with a mark, and returns it once its daemon is there."""
    made = []

    def start(mark):
        environment = {**os.environ, JOB_MARK: str(mark)}
        command = [sys.executable, "-c", WORKER]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        assert made[-1].stdout.readline()
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_daemon_of_a_worker_is_found_by_the_environment_and_ends_with_the_job(worker, mark):
    ray_worker = worker(mark)
    other = worker(mark - 1)
    _, daemon = workers_of(mark)
    assert asyncio.run(terminate_workers(mark, ())) == ()
    assert living(daemon.pid) is None
    assert ray_worker.wait() == -signal.SIGKILL
    assert other.poll() is None
    assert len(workers_of(mark - 1)) == 2
    asyncio.run(terminate_workers(mark - 1, ()))


def test_a_worker_that_stays_keeps_what_it_has_started(worker, mark):
    staying, ending = worker(mark), worker(mark)
    child = next(p for p in workers_of(mark) if p.pid not in (staying.pid, ending.pid))
    assert asyncio.run(terminate_workers(mark, (staying.pid, child.pid))) == ()
    assert staying.poll() is None
    assert [p.pid for p in workers_of(mark)] == sorted([staying.pid, child.pid])
    assert ending.wait() == -signal.SIGKILL
    asyncio.run(terminate_workers(mark, ()))
