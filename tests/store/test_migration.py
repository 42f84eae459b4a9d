"""A file that an older version really wrote (tests/data) is read by this one."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.engine.state.invariants import check
from schedulemesh.errors import JournalError
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import fact, write

OLD = Path(__file__).parents[1] / "data" / "journal-format-1.sqlite"


@pytest.fixture
def path(tmp_path):
    copy = tmp_path / "mesh.sqlite"
    shutil.copy(OLD, copy)
    return copy


def test_format_1_is_read_whole(path):
    journal = SqlJournal(path, must_exist=True)
    assert journal.begin() == 2
    state = journal.load().fold()
    check(state)
    assert {name: agent.phase for name, agent in state.agents.items()} == {
        "bert": AgentPhase.RUNNING,
        "llama": AgentPhase.STARTING,
    }
    assert list(state.ledger.accounts) == ["train", "serve"]
    assert state.policy.min_preempt_score == 1.5
    assert state.preempted["resnet"].state_key == "state-resnet"
    assert set(state.running.by_id) == {"bert", "llama", "elsewhere"}
    assert state.answers["r1"].outcome.agent_name == "resnet"
    assert journal.blob_sizes()["c" * 64] == len(b"class bytes")
    assert journal.blob_sizes()["state-resnet"] == len(b"saved")
    write(journal, fact(2))
    journal.close()
    again = SqlJournal(path)
    assert again.load().fold().epoch == 2
    again.close()


def test_it_has_this_format_afterwards_and_nothing_of_the_old(path):
    SqlJournal(path).close()
    with sqlite3.connect(path) as found:
        tables = {
            name for (name,) in found.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
        (version,) = found.execute(
            "SELECT value FROM schedulemesh_meta WHERE name = 'format'"
        ).fetchone()
    found.close()
    assert version == FORMAT_VERSION
    assert tables == {
        "schedulemesh_meta",
        "schedulemesh_journals",
        "schedulemesh_commits",
        "schedulemesh_snapshots",
        "schedulemesh_blobs",
        "schedulemesh_notes",
    }


def test_an_old_file_with_a_bad_record_is_left_as_it_is(path):
    with sqlite3.connect(path) as other:
        other.execute("UPDATE schedulemesh_records SET facts = x'5b7b7d5d' WHERE seq = 3")
    other.close()
    before = path.read_bytes()
    with pytest.raises(
        JournalError, match=r"format 1 and its record 3 cannot be read .* left as it is"
    ):
        SqlJournal(path)
    assert path.read_bytes() == before


def test_format_2_is_read_with_its_snapshot(tmp_path):
    path = tmp_path / "mesh.sqlite"
    shutil.copy(OLD.with_name("journal-format-2.sqlite"), path)
    journal = SqlJournal(path, must_exist=True)
    state = journal.load().fold()
    check(state)
    assert list(state.ledger.accounts) == ["train"]
    assert state.agents["llama"].phase is AgentPhase.RUNNING
    assert state.agents["llama"].group_id is None
    assert journal.blob_sizes()["c" * 64] == len(b"class bytes")
    journal.close()
    with sqlite3.connect(path) as found:
        wanted = "SELECT value FROM schedulemesh_meta WHERE name = 'format'"
        assert found.execute(wanted).fetchone() == (FORMAT_VERSION,)
    found.close()
