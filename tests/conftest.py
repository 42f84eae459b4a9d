"""The rule for every test, that a real Ray starts in tests/integration only, and what all may need."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import Phase, settings

from tests.watchdog import Watchdog

# A check runs the same examples every time, so that a change alone decides how it ends, and shows a failure
# as it is found; `make explore` tries others and reduces what it finds, which takes minutes. How long an
# example takes depends on what else runs on the machine.
settings.register_profile(
    "check", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("check")

# Ray gives its workers a niceness of 15, with which they would get next to nothing beside whatever else this
# machine computes, the tests without Ray included.
os.environ.setdefault("RAY_worker_niceness", "0")


# What is imported and collected stays: a search of it for garbage would find none, again and again.
gc.disable()


def pytest_configure(config):
    """Nothing that hangs lets a run hang, unless the time of tests is unlimited (``--timeout=0``)."""
    if config.getoption("timeout") != 0.0:
        config.pluginmanager.register(Watchdog(float(config.getini("timeout"))))


def pytest_collection_finish():
    """A search for garbage in what has been imported and collected takes a tenth of a run."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def ray_is_forbidden(monkeypatch):
    """A unit test that starts Ray fails at once; tests/integration overrides this.

    Ray is imported here and not above, so that tests/runtime, which overrides this too, runs without it.
    """
    import ray

    def refuse(*_args, **_kwargs):
        pytest.fail("a unit test must not start Ray; tests of real Ray live in tests/integration")

    monkeypatch.setattr(ray, "init", refuse)


@pytest.fixture
def interruptible():
    """Processes that this one starts can be interrupted, also where it runs in the background itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
