"""The runner of an adopted job ends the driver: after its notice at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from schedulemesh.core.agent import job_adopter
from schedulemesh.core.agent.job_adopter import JobAdopter
from schedulemesh.protocol.agents import JobStart

#: A driver that ignores SIGTERM.
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True);"
    "time.sleep(600)"  # there to be ended
)


@pytest.fixture
def driver():
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


#: As Ray's actor for a submitted command: the command and a shell that watches it, each in its own session.
SUBMISSION = """
import os, subprocess, sys
command = "python3 -c 'import time; print(flush=True); time.sleep(600)'; true"  # there to be ended
started = subprocess.Popen(command, shell=True, start_new_session=True)
watch = f"while kill -s 0 {os.getpid()}; do sleep 1; done; kill -9 -{started.pid}"
watcher = subprocess.Popen(watch, shell=True, start_new_session=True)
code = started.wait()
watcher.kill()
sys.exit(3 if code == -15 else 4)
"""


def test_the_command_of_a_submission_is_ended_and_rays_own_actor_ends_by_itself(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(job_adopter, "node_id", lambda: "n1")
    job = JobStart(
        task_id="t", attempt=1, scheduler="mesh", namespace="n", owner="n/t", folder=str(tmp_path)
    )
    with subprocess.Popen(
        [sys.executable, "-c", SUBMISSION, "ray::JobSupervisor"], stdout=subprocess.PIPE
    ) as actor:
        actor.stdout.readline()
        adopter = JobAdopter("t", {}, actor.pid, time.time(), job)
        run = threading.Thread(target=adopter.run_driver)
        run.start()
        adopter.on_preemption_notice(30.0)
        run.join(30)
        assert not run.is_alive()
        assert actor.wait() == 3, "the command did not end by SIGTERM"


@pytest.mark.parametrize("notice", [True, False])
def test_a_driver_that_had_its_notice_is_killed_when_it_is_to_end(
    driver, tmp_path, monkeypatch, notice
):
    monkeypatch.setattr(job_adopter, "_KILL_S", 3600.0 if notice else 0.01)
    monkeypatch.setattr(job_adopter, "node_id", lambda: "n1")
    job = JobStart(
        task_id="t", attempt=1, scheduler="mesh", namespace="n", owner="n/t", folder=str(tmp_path)
    )
    adopter = JobAdopter("t", {}, driver.pid, time.time(), job)
    run = threading.Thread(target=adopter.run_driver)
    run.start()
    if notice:
        adopter.on_preemption_notice(0.01)
    assert adopter.cancel("t") == {"success": True}
    run.join()
    assert driver.wait() == -9
