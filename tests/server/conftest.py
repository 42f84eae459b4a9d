"""The HTTP server runs without Ray, and so do its tests."""

from __future__ import annotations

import sys

import pytest

from schedulemesh.server.page import app
from tests.runtime.composition import InThread
from tests.server.local import Api


@pytest.fixture(autouse=True)
def ray_is_forbidden(monkeypatch):
    """Importing Ray fails, also where another test has loaded it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture(autouse=True)
def patient_page(monkeypatch):
    """However busy the machine is, a page does not say that a supervisor is stopped which is slow."""
    monkeypatch.setattr(app, "_STOPPED_S", 60.0)


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
