"""The rule for every test, that a real Ray starts in tests/integration only, and what all may need."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# How long an example takes depends on what else runs on the machine.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")


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
