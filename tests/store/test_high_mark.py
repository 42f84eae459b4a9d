"""A write-ahead log that was lost, cut or damaged is noticed, and nothing is taken back silently."""

from __future__ import annotations

import random
import shutil
import sqlite3

import pytest

from schedulemesh.errors import JournalError
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import epochs, fact, write

COMMITS = 30


@pytest.fixture
def killed(tmp_path):
    """The files of a journal whose process was killed: the newest commits lie in the log alone."""
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    for number in range(1, COMMITS + 1):
        write(journal, fact(number), k=b"x" * 3000)
    there = tmp_path / "killed"
    there.mkdir(mode=0o700)
    for suffix in ("", "-wal", ".newest"):
        shutil.copy(f"{journal.address.path}{suffix}", there / f"j.sqlite{suffix}")
    journal.close()
    return there / "j.sqlite"


def log(path):
    return path.with_name("j.sqlite-wal")


def newest(path):
    return path.with_name("j.sqlite.newest")


def refused(path):
    """Refused with the way out, before anything was changed; a copy is kept."""
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(JournalError, match=rf"commit {COMMITS} of epoch 1 was on disk") as raised:
        SqlJournal(path, must_exist=True)
    assert "remove j.sqlite.newest" in str(raised.value)
    for name, content in before.items():
        if not name.endswith("-shm"):
            assert (path.parent / name).read_bytes() == content
    assert path.with_name("j.sqlite.damaged-1").read_bytes() == before["j.sqlite"]


def test_a_log_that_is_whole_is_read(killed):
    journal = SqlJournal(killed)
    assert epochs(journal) == list(range(1, COMMITS + 1))
    assert journal.begin() == 2
    journal.close()


def test_a_lost_log(killed):
    log(killed).unlink()
    refused(killed)


@pytest.mark.parametrize("seed", range(12))
def test_a_log_that_was_cut_or_flipped(killed, seed):
    rng = random.Random(seed)
    whole = bytearray(log(killed).read_bytes())
    at = rng.randrange(32, len(whole))
    if seed % 2:
        whole[at] ^= 1 << rng.randrange(8)
    else:
        del whole[at:]
    log(killed).write_bytes(whole)
    # A flip in what only padded the log's last frames, or was overwritten since, loses nothing.
    try:
        journal = SqlJournal(killed)
    except JournalError:
        refused(killed)
    else:
        assert epochs(journal) == list(range(1, COMMITS + 1))
        journal.close()


def test_an_older_copy_is_used_once_the_operator_confirms(killed):
    log(killed).unlink()
    refused(killed)
    newest(killed).unlink()
    journal = SqlJournal(killed, must_exist=True)
    assert journal.begin() == 1
    write(journal, fact(99))
    journal.close()
    again = SqlJournal(killed)
    assert epochs(again)[-1] == 99
    again.close()


def test_a_mark_that_is_behind_is_accepted(killed):
    """As after a power failure, which the mark need not survive."""
    old = newest(killed).read_bytes()
    journal = SqlJournal(killed)
    journal.begin()
    write(journal, fact(31))
    journal.close()
    newest(killed).write_bytes(old)
    again = SqlJournal(killed)
    assert again.begin() == 3
    again.close()


def test_a_damaged_mark_is_refused(killed):
    newest(killed).write_bytes(b"garbage")
    with pytest.raises(JournalError, match=r"j.sqlite.newest.* is damaged .* remove that file"):
        SqlJournal(killed)
    newest(killed).unlink()
    SqlJournal(killed).close()


def test_a_commit_whose_mark_cannot_be_written_is_rolled_back(tmp_path, monkeypatch):
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    write(journal, fact(1))

    def fail(mark):
        raise JournalError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(journal._high_mark, "write", fail)
        with pytest.raises(JournalError, match="the disk is full"):
            write(journal, fact(2))
    write(journal, fact(3))
    assert epochs(journal) == [1, 3]
    journal.close()


def copied(path, folder):
    """The files of a journal as a process would find them that starts after this one was killed."""
    folder.mkdir(mode=0o700)
    for file in path.parent.glob("j.sqlite*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, folder / file.name)
    return folder / path.name


@pytest.mark.parametrize("removed", [["-wal"], ["-wal", "-shm"], ["-wal", "-shm", ".newest"]])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_that_is_removed_in_use_is_saved_at_the_next_commit(
    tmp_path, removed, replaced, caplog
):
    path = tmp_path / "used" / "j.sqlite"
    path.parent.mkdir(mode=0o700)
    journal = SqlJournal(path)
    journal.begin()
    for number in (1, 2):
        write(journal, fact(number))
    for suffix in removed:
        file = path.with_name(f"j.sqlite{suffix}")
        file.unlink()
        if replaced and suffix == "-wal":
            file.touch(mode=0o600)
    for number in (3, 4):
        write(journal, fact(number))
    again = SqlJournal(copied(path, tmp_path / "copy"), must_exist=True)
    assert epochs(again) == [1, 2, 3, 4]
    again.close()
    assert caplog.text.count("was removed or replaced while it was in use, 1 times") == 1
    journal.close()
    whole = SqlJournal(path, must_exist=True)
    assert epochs(whole) == [1, 2, 3, 4]
    whole.close()


def test_a_removed_log_that_a_reader_keeps_from_being_saved_takes_no_commit(tmp_path):
    path = tmp_path / "j.sqlite"
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(1))
    journal._connection.change("PRAGMA busy_timeout=10")
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM schedulemesh_commits").fetchall()
    write(journal, fact(2))
    log(path).unlink()
    with pytest.raises(JournalError, match=r"-wal was removed .* end that process"):
        write(journal, fact(3))
    reader.close()
    write(journal, fact(3))
    again = SqlJournal(copied(path, tmp_path / "copy"), must_exist=True)
    assert epochs(again) == [1, 2, 3]
    again.close()
    journal.close()


def test_a_mark_that_is_removed_in_use_is_written_again(tmp_path):
    path = tmp_path / "j.sqlite"
    journal = SqlJournal(path)
    journal.begin()
    write(journal, fact(1))
    newest(path).unlink()
    write(journal, fact(2))
    copy = copied(path, tmp_path / "copy")
    log(copy).unlink()
    with pytest.raises(JournalError, match="commit 2 of epoch 1 was on disk"):
        SqlJournal(copy, must_exist=True)
    journal.close()
