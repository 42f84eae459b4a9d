"""The journal's files: nothing but regular files of this user, locked by what they are, not by their name."""

from __future__ import annotations

import os
import stat

import pytest

from schedulemesh.errors import JournalError
from schedulemesh.store import files
from schedulemesh.store.address import address_of
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import epochs, fact, write
from tests.store.writing_process import run


@pytest.fixture
def path(tmp_path):
    """A journal with one commit, closed."""
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    write(journal, fact(1))
    journal.close()
    return tmp_path / "j.sqlite"


def refused(path, said):
    before = sorted(path.parent.iterdir())
    with pytest.raises(JournalError, match=said):
        SqlJournal(path)
    assert sorted(path.parent.iterdir()) == before


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_two_schedulers_do_not_meet_on_one_file_through_a_linked_folder(tmp_path):
    (tmp_path / "there").symlink_to(tmp_path / "here")
    (tmp_path / "here").mkdir()
    with run(tmp_path / "here", "one") as other:
        journal = SqlJournal(address_of(str(tmp_path / "there"), tmp_path, "one", "shared"))
        with pytest.raises(JournalError, match=f"in use by process {other.process.pid} on "):
            journal.begin()
        journal.close()
        assert other.ask(7) == "done"


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_a_link_is_not_followed(path, tmp_path, suffix):
    kept = tmp_path / "of somebody"
    kept.write_bytes(b"worth keeping")
    files.beside(path, suffix).unlink(missing_ok=True)
    files.beside(path, suffix).symlink_to(kept)
    refused(path, "is a symbolic link to .*, and a journal is never reached through one")
    assert kept.read_bytes() == b"worth keeping"


def test_a_link_that_leads_nowhere(tmp_path):
    (tmp_path / "j.sqlite").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "j.sqlite", "is a symbolic link")
    assert not (tmp_path / "nowhere").exists()


def test_a_named_pipe_is_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "j.sqlite")
    refused(tmp_path / "j.sqlite", "is a named pipe, where the journal's file must be")


def test_a_directory_is_refused(tmp_path):
    (tmp_path / "j.sqlite").mkdir()
    refused(tmp_path / "j.sqlite", "is a directory")


def test_a_hard_link_is_refused(path, tmp_path):
    (tmp_path / "other.sqlite").hardlink_to(path)
    refused(path, "has 2 hard links")


def test_nobody_else_may_read_it(tmp_path):
    journal = SqlJournal(address_of(str(tmp_path / "state"), tmp_path, "one", "a"))
    journal.begin()
    write(journal, fact(1))
    folder = tmp_path / "state" / "one"
    assert mode(folder) == 0o700
    names = ("a.sqlite", "a.sqlite-wal", "a.sqlite-shm", "a.sqlite.newest")
    assert {file.name: mode(file) for file in folder.iterdir()} == dict.fromkeys(names, 0o600)
    journal.close()


def test_permissions_that_are_too_wide_are_narrowed(path, caplog):
    """As after a backup was put back with cp."""
    path.chmod(0o644)
    SqlJournal(path).close()
    assert mode(path) == 0o600
    assert "had mode 0644" in caplog.text


def test_a_folder_that_others_may_write_to(path):
    path.parent.chmod(0o777)
    refused(path, r"others may write to the folder .* \(mode 0777\)")
    path.parent.chmod(0o755)
    SqlJournal(path).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_file_of_another_user_is_refused(path, which):
    os.chown(path if which == "file" else path.parent, 12345, 12345)
    refused(path, "belongs to user 12345, and this is user 0")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_state_path_that_another_user_made_first_is_refused(tmp_path):
    state_path = tmp_path / "state"
    state_path.mkdir(mode=0o777)
    os.chown(state_path, 12345, 12345)
    address = address_of(str(state_path), tmp_path, "one", "a")
    with pytest.raises(JournalError, match="state belongs to user 12345, and this is user 0"):
        SqlJournal(address)
    assert not (state_path / "one" / "a.sqlite").exists()


def test_leftovers_of_a_killed_process_are_removed(path, tmp_path):
    """Killed while it made the file for the first time: with an unfinished one, or with both of its names."""
    gone = 2**22 + 1  # above every process number
    for left in (f".j.sqlite-{gone}-00", f".j.sqlite-{gone}-00-wal", f".probe-{gone}-00"):
        (tmp_path / left).write_bytes(b"half")
    (tmp_path / f".j.sqlite-{gone}-01").hardlink_to(path)
    mine = tmp_path / f".j.sqlite-{os.getpid()}-00"
    mine.write_bytes(b"being made")
    journal = SqlJournal(path)
    assert epochs(journal) == [1]
    assert [f.name for f in tmp_path.iterdir() if f.name.startswith(".")] == [mine.name]
    journal.close()
