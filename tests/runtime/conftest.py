"""The runtime runs without Ray, and so do its tests."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def ray_is_forbidden(monkeypatch):
    """Importing Ray fails, also where another test has loaded it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
