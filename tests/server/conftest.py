"""The HTTP server runs without Ray, and so do its tests."""

from __future__ import annotations

import sys

import pytest

from tests.runtime.composition import InThread
from tests.server.local import Api


@pytest.fixture(autouse=True)
def ray_is_forbidden(monkeypatch):
    """Importing Ray fails, also where another test has loaded it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture
def mesh(tmp_path):
    """A supervisor with an empty journal."""
    found = InThread(tmp_path / "j.sqlite")
    yield found
    found.close()


@pytest.fixture
def api(mesh, tmp_path):
    """Its HTTP API."""
    found = Api(mesh, tmp_path / "home")
    yield found
    found.close()
