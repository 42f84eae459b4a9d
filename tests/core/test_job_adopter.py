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
