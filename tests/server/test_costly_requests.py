"""What ``costly_requests`` measures and how it judges that; how long anything takes is not asserted."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.costly_requests import (
    CLOSED,
    Row,
    costly_changes,
    costly_packed,
    costly_reads,
    measured,
    packed_junk,
    prepared,
    read,
    too_long,
)


@pytest.fixture
def unmeasured(monkeypatch):
    """Takes the measurement of portions away at the end."""
    monkeypatch.setattr(asyncio.Handle, "_run", asyncio.Handle._run)


@pytest.mark.usefixtures("unmeasured")
def test_each_request_is_sent_beside_an_honest_caller_and_measured(tmp_path):
    mesh, api = prepared(tmp_path, waiting=30, running=3, recorded=100)
    requests = [read("/tasks?limit=10"), read("/tasks/none"), packed_junk("junk", b"\xdd")]
    rows, base = measured(mesh, api, requests, seconds=0.05)
    api.close()
    mesh.close()
    assert [(row.name, row.status) for row in rows] == [
        ("/tasks?limit=10", "200"),
        ("/tasks/none", "404"),
        ("packed junk", "400"),
    ]
    for row in (*rows, base):
        assert min(row.each, row.median, row.supervisor, row.http) > 0
        assert row.p99 >= row.median


def row(name, *, status="200", supervisor=1.0, http=1.0):
    return Row(name, status, 1.0, 1.0, 1.0, supervisor, http)


def test_a_long_portion_of_either_loop_and_no_answer_are_found():
    rows = [
        row("good"),
        row("refused", status="409"),
        row("cut off", status=CLOSED),
        row("just"),
        row("slow to answer", supervisor=26.0),
        row("slow to read", http=300.0),
        row("lost", status="no answer"),
    ]
    assert [one.name for one in too_long(rows)] == ["slow to read", "slow to answer", "lost"]


def test_every_request_has_a_name_of_its_own():
    requests = [*costly_reads(), *costly_changes(), *costly_packed()]
    names = [one.name for one in requests]
    assert sorted(set(names)) == sorted(names)
