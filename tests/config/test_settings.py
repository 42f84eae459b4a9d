"""Where a journal is to lie, as callers say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedulemesh.config.settings import parse_state_path
from schedulemesh.errors import InvalidRequestError


def test_a_relative_folder_is_resolved_in_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_state_path("state") == parse_state_path(Path("state")) == str(tmp_path / "state")
    assert parse_state_path("~/state") == "/home/me/state"
    assert parse_state_path("/var/lib/mesh") == "/var/lib/mesh"


def test_a_url_stays_as_it_is():
    url = "postgresql+psycopg://me@host/mesh"
    assert parse_state_path(url) == url
    assert parse_state_path(None) is None


@pytest.mark.parametrize("wrong", ["", 7, b"/bytes", ["/a"]])
def test_a_path_that_is_neither_folder_nor_url_is_refused(wrong):
    with pytest.raises(InvalidRequestError, match="state_path must be a folder or the URL"):
        parse_state_path(wrong)
