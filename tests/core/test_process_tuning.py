"""Processes of the control plane collect garbage rarely, and their threads take turns often."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from schedulemesh.core.backend.process_tuning import collect_garbage_rarely, switch_threads_often


@pytest.fixture
def process():
    """This process, whose settings are as before at the end."""
    threshold, interval_s = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("process")
def test_what_lives_by_now_is_not_looked_at_again():
    collect_garbage_rarely()
    assert gc.get_freeze_count() > 1_000
    assert gc.get_threshold() == (10_000, 20, 50)
    assert gc.isenabled()


@pytest.mark.usefixtures("process")
def test_a_thread_that_waits_gets_its_turn_within_a_millisecond():
    switch_threads_often()
    assert sys.getswitchinterval() < 0.001


#: Composes the process of an actor of the control plane and shows its settings.
COMPOSED = """
import gc, sys, msgspec
from schedulemesh.config.http import HttpSettings
from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.core.backend import http_actor, ray_backend, supervisor_actor
from tests.runtime.fake_backend import FakeBackend
http_actor._addresses = tuple  # only Ray knows them
ray_backend.RayBackend = FakeBackend
settings = SchedulerSettings(name="mesh", namespace="space", detached=True, http=HttpSettings())
{module}._compose(msgspec.msgpack.encode(settings), {beside})
print(gc.get_freeze_count() > 1_000, gc.get_threshold()[0], sys.getswitchinterval())
"""


@pytest.mark.parametrize(("module", "beside"), [("http_actor", None), ("supervisor_actor", "''")])
def test_both_processes_of_the_control_plane_are_tuned(module, beside):
    program = COMPOSED.format(module=module, beside=beside)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout.split() == ["True", "10000", "0.0005"], run.stderr
