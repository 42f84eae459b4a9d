"""Journals that each format has written are read: see ``golden``."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.engine.codec import encode_chunk
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.snapshot import parts, take_snapshot
from schedulemesh.store.recovery import Stored
from schedulemesh.store.sql import SqlJournal
from tests.store.golden import stored_journals, summary

FORMATS = range(1, FORMAT_VERSION + 1)
JOURNALS = {
    f"{number}-{journal.name}": journal for number in FORMATS for journal in stored_journals(number)
}


@pytest.fixture(params=JOURNALS)
def golden(request):
    """A golden journal."""
    return JOURNALS[request.param]


def encoded(state):
    """The snapshot of a state; sets are sorted, as their order depends on the hashes of strings."""
    return msgspec.json.encode(take_snapshot(state), order="deterministic")


def test_it_says_what_it_said_and_the_scheduler_goes_on(golden, tmp_path):
    path = tmp_path / "mesh.sqlite"
    path.touch(mode=0o600)
    path.write_bytes(golden.file)
    journal = SqlJournal(path, must_exist=True)
    state = journal.load().fold()
    journal.close()
    check(state)
    assert summary(state) == golden.summary
    snapshot = [encode_chunk(part) for part in parts(take_snapshot(state))]
    again = Stored(parts=snapshot).fold()
    assert encoded(again) == encoded(state)
    engine = Engine(state)
    engine.handle(s.ClockTicked(), 1e6)
    check(engine.state)
