"""Processes of the control plane collect garbage rarely, and their threads take turns often."""

from __future__ import annotations

import gc
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
