"""What every test abides by: a real Ray starts in tests/integration only."""

from __future__ import annotations

import pytest
import ray


@pytest.fixture(autouse=True)
def ray_is_forbidden(monkeypatch):
    """A unit test that starts Ray fails at once; tests/integration overrides this."""

    def refuse(*_args, **_kwargs):
        pytest.fail("a unit test must not start Ray; tests of real Ray live in tests/integration")

    monkeypatch.setattr(ray, "init", refuse)
