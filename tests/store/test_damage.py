"""A journal's file that is damaged, newer or strange is refused whole, and kept."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from pathlib import Path

import pytest

from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import key_of
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import epochs, fact, write


@pytest.fixture
def path(tmp_path):
    """A journal of 60 commits in several pages, closed."""
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    for number in range(1, 61):
        write(journal, *[fact(number)] * 20)
    journal.close()
    return tmp_path / "j.sqlite"


def execute(path, statement):
    with sqlite3.connect(path) as other:
        other.execute(statement)
    other.close()


def refusal(path, found):
    """The error names what was found, the copy, and what to do; the copy is the file."""
    before = path.read_bytes()
    with pytest.raises(JournalError, match=found) as raised:
        SqlJournal(path).load()
    said = str(raised.value)
    copy = path.with_name(path.name + ".damaged-1")
    assert str(copy) in said
    assert "is damaged" in said
    assert "Put a good backup in its place" in said
    assert copy.read_bytes() == before
    assert path.read_bytes() == before


def test_wrong_magic(path):
    path.write_bytes(b"this is a shopping list" * 100)
    refusal(path, "does not begin like an SQLite database")


def test_an_empty_file(path):
    path.write_bytes(b"")
    refusal(path, "the file is empty")


def test_a_copy_for_which_the_disk_has_no_room_leaves_nothing_behind(path, monkeypatch):
    def copy_half(source, target):
        Path(target).write_bytes(source.read_bytes()[: source.stat().st_size // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    path.write_bytes(b"this is a shopping list" * 100)
    monkeypatch.setattr(shutil, "copy2", copy_half)
    for _ in range(3):
        with pytest.raises(JournalError, match="no copy could be made"):
            SqlJournal(path)
    assert not list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_file(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refusal(path, "malformed|size|invalid page|not a database|file is")


def test_pages_of_garbage(path):
    whole = bytearray(path.read_bytes())
    whole[8192 : 8192 + 20_000] = b"\xa5" * 20_000
    path.write_bytes(whole)
    refusal(path, "is damaged")


def test_garbage_at_the_end_is_not_part_of_it(path):
    with path.open("ab") as file:
        file.write(b"garbage" * 5_000)
    journal = SqlJournal(path)
    journal.begin()
    assert len(epochs(journal)) == 60 * 20
    for number in range(61, 200):
        write(journal, *[fact(number)] * 20)
    journal.close()
    again = SqlJournal(path)
    assert epochs(again)[::20] == list(range(1, 200))
    again.close()


def test_a_log_left_behind_is_read(path, tmp_path):
    """As after kill -9: the newest commits lie in the write-ahead log alone."""
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(61))
    killed = tmp_path / "killed"
    killed.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", killed / f"j.sqlite{suffix}")
    journal.close()
    again = SqlJournal(killed / "j.sqlite")
    assert epochs(again)[-1] == 61
    assert again.begin() == 3
    again.close()


def test_garbage_at_the_end_of_the_log_is_not_part_of_it(path, tmp_path):
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(61))
    killed = tmp_path / "killed"
    killed.mkdir()
    shutil.copy(path, killed / "j.sqlite")
    (killed / "j.sqlite-wal").write_bytes(path.with_name("j.sqlite-wal").read_bytes() + b"x" * 9999)
    journal.close()
    again = SqlJournal(killed / "j.sqlite")
    assert epochs(again)[-1] == 61
    again.close()


@pytest.mark.parametrize("number", [1, 30, 60])
def test_a_commit_that_is_gone(path, number):
    execute(path, f"DELETE FROM schedulemesh_commits WHERE number = {number}")
    refusal(path, f"commit {number} is missing")


def test_a_commit_that_was_changed(path):
    execute(path, "UPDATE schedulemesh_commits SET facts = x'5b5d' WHERE number = 7")
    refusal(path, "commit 7 is not what was written")


def test_a_snapshot_that_is_gone(path):
    journal = SqlJournal(path)
    journal.begin()
    journal.compact([b"one", b"two"], 60, frozenset())
    journal.close()
    execute(path, "DELETE FROM schedulemesh_snapshots WHERE number = 2")
    refusal(path, "part 2 of the snapshot is missing")


def test_stored_bytes_are_checked_against_their_hash(path):
    """Also where the checksum of the row was changed with them, or another row's bytes lie there."""
    journal = SqlJournal(path)
    journal.begin()
    key = key_of(b"v")
    write(journal, k=b"v", other=b"w")
    execute(
        path,
        "UPDATE schedulemesh_blobs SET (data, crc) = (SELECT data, crc FROM schedulemesh_blobs "
        f"WHERE key = '{key_of(b'w')}')",
    )
    with pytest.raises(JournalError, match=rf"the stored bytes {key} in .* are damaged"):
        journal.blob(key)
    assert journal.blob(key_of(b"w")) == b"w"
    write(journal, again=b"v")  # given again, the good ones take their place
    assert journal.blob(key) == b"v"
    journal.close()


def test_damaged_bytes_are_replaced_also_where_the_first_attempt_fails(path, monkeypatch):
    journal = SqlJournal(path)
    journal.begin()
    write(journal, k=b"v")
    execute(path, "UPDATE schedulemesh_blobs SET data = x'00'")
    with pytest.raises(JournalError, match="are damaged"):
        journal.blob(key_of(b"v"))

    def put_and_fail(*args):
        SqlJournal._put_blob(journal, *args)
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_put_blob", put_and_fail)
        with pytest.raises(JournalError, match="disk is full"):
            write(journal, again=b"v")
    write(journal, again=b"v")
    assert journal.blob(key_of(b"v")) == b"v"
    journal.close()


def test_the_same_damage_is_copied_once_and_another_apart(path):
    path.write_bytes(b"")
    for _ in range(3):
        with pytest.raises(JournalError, match="damaged-1"):
            SqlJournal(path)
    path.write_bytes(b"something else")
    with pytest.raises(JournalError, match="damaged-2"):
        SqlJournal(path)
    assert len(list(path.parent.glob("*.damaged-*"))) == 2


@pytest.mark.parametrize("found", [FORMAT_VERSION + 1, 99, 0])
def test_another_format_is_refused_and_left_alone(path, found):
    execute(path, f"UPDATE schedulemesh_meta SET value = {found} WHERE name = 'format'")
    before = path.read_bytes()
    with pytest.raises(
        JournalError, match=f"has format {found}, this ScheduleMesh reads formats 1 to"
    ):
        SqlJournal(path)
    assert path.read_bytes() == before
    assert list(path.parent.glob("*.damaged-*")) == []


def test_a_database_of_something_else_is_left_alone(tmp_path):
    execute(tmp_path / "notes.sqlite", "CREATE TABLE notes (line TEXT)")
    with pytest.raises(JournalError, match="holds no journal"):
        SqlJournal(tmp_path / "notes.sqlite")


def test_a_journal_that_must_be_there_is_not_made(tmp_path):
    with pytest.raises(JournalError, match=r"ran before, but its journal .* is gone"):
        SqlJournal(tmp_path / "j.sqlite", must_exist=True)
    assert list(tmp_path.iterdir()) == []
