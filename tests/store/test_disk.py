"""The disk is tried before it is trusted, and what is wrong with it is said."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import subprocess
import sys

import pytest

from schedulemesh.errors import JournalError
from schedulemesh.store.disk import BREAKING, file_system, probe
from schedulemesh.store.high_mark import HighMark
from schedulemesh.store.journal import InDoubtError
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import epochs, fact, write


@contextlib.contextmanager
def mounted(folder, *options):
    """Mount something there while it lasts; skips where that is not allowed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-o", "mode=700", *options, folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def mounts(tmp_path, *lines):
    file = tmp_path / "mounts"
    file.write_text("".join(f"{line} rw 0 0\n" for line in lines))
    return file


def test_an_empty_append_detects_a_full_disk(tmp_path):
    """Writing is tried again with one; it must not be answered from what is there already."""
    journal = SqlJournal(tmp_path / "a.sqlite")
    journal.begin()
    write(journal, fact(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        for _ in range(3):
            with pytest.raises(JournalError, match="cannot be written") as failed:
                journal.append(b"", {})
            # Python 3.10 does not tell which call has failed.
            assert isinstance(failed.value, InDoubtError) == (sys.version_info < (3, 11))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.append(b"", {})
    write(journal, fact(2))
    assert epochs(journal) == [1, 2]
    journal.close()


def test_a_good_disk_keeps_no_trace_of_the_probe(tmp_path):
    probe(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_deepest_mount_counts_and_of_two_the_later(tmp_path):
    listed = mounts(
        tmp_path,
        "a / ext4",
        "b /data nfs4",
        "c /data/local\\040disk xfs",
        "d /over ext4",
        "e /over cifs",
    )
    folder = type(tmp_path)
    assert file_system(folder("/etc"), listed) == "ext4"
    assert file_system(folder("/data/x/y"), listed) == "nfs4"
    assert file_system(folder("/data/local disk/x"), listed) == "xfs"
    assert file_system(folder("/database"), listed) == "ext4"
    assert file_system(folder("/over"), listed) == "cifs"
    assert file_system(folder("/x"), tmp_path / "nothing") == ""


@pytest.mark.parametrize("kind", sorted(BREAKING))
def test_network_file_systems_are_named(tmp_path, kind):
    listed = mounts(tmp_path, "a / ext4", f"b {tmp_path} {kind}")
    said = rf"network file system \({kind}\).*use a folder on a local disk, or a PostgreSQL URL"
    with pytest.raises(JournalError, match=said):
        probe(tmp_path / "journal", listed)


def test_a_file_system_that_may_be_shared_is_mentioned(tmp_path, caplog):
    probe(tmp_path / "journal", mounts(tmp_path, f"b {tmp_path} fuse.unknownfs"))
    assert "lies on fuse.unknownfs" in caplog.text


def test_a_read_only_disk(tmp_path):
    folder = tmp_path / "disk"
    with mounted(folder, "-t", "tmpfs", "tmpfs"):
        SqlJournal(folder / "j.sqlite").close()
        remount(folder, "ro")
        with pytest.raises(JournalError, match=r"no journal can be kept in .*it can only be read"):
            SqlJournal(folder / "j.sqlite")
        with pytest.raises(JournalError, match="it can only be read"):
            SqlJournal(folder / "deeper" / "j.sqlite")


def test_a_disk_that_becomes_read_only_and_writable_again(tmp_path):
    folder = tmp_path / "disk"
    with mounted(folder, "-t", "tmpfs", "tmpfs"):
        journal = SqlJournal(folder / "j.sqlite")
        journal.begin()
        write(journal, fact(1))
        remounted = subprocess.run(
            ["mount", "-o", "remount,ro", folder], capture_output=True, check=False
        )
        if remounted.returncode == 0:  # some kernels refuse while files are open for writing
            with pytest.raises(JournalError, match="cannot be written"):
                write(journal, fact(2))
            assert epochs(journal) == [1]
            remount(folder, "rw")
        write(journal, fact(3))
        assert epochs(journal) == [1, 3]
        journal.close()


def test_a_full_disk(tmp_path):
    folder = tmp_path / "disk"
    with mounted(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        journal = SqlJournal(folder / "j.sqlite")
        journal.begin()
        write(journal, fact(1))
        with pytest.raises(JournalError, match=r"the disk is full .* make room"):
            write(journal, fact(2), k=b"x" * 2_000_000)
        assert epochs(journal) == [1]
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(JournalError, match="the disk is full"):
            SqlJournal(folder / "other.sqlite")
        remount(folder, "size=8m")
        write(journal, fact(3), k=b"x" * 2_000_000)
        assert epochs(journal) == [1, 3]
        journal.close()


def test_a_full_database(tmp_path):
    """The same without a mount: SQLite itself may not grow the file any further."""
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    write(journal, fact(1))
    with journal._transaction("be bounded") as connection:
        connection.change("PRAGMA max_page_count = 1")  # the pages that it has now
    with pytest.raises(JournalError, match=r"the disk is full .* make room"):
        write(journal, fact(2), k=b"x" * 200_000)
    assert epochs(journal) == [1]
    with journal._transaction("be unbounded") as connection:
        connection.change("PRAGMA max_page_count = 100000")
    write(journal, fact(3), k=b"x" * 200_000)
    assert epochs(journal) == [1, 3]
    journal.close()


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="no journal can be kept in"):
        SqlJournal(tmp_path / "file" / "j.sqlite")


def refusing(monkeypatch, number):
    """What a file system answers that has failed, or does not know the call, when asked for a block."""

    def allocate(*_given):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", allocate)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_commit_whose_file_system_fails_within_fsync_is_in_doubt(number, tmp_path, monkeypatch):
    """That of ext4 may report success then, which a real disk shows in about one of 400 failures."""
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    write(journal, fact(1))
    mark = HighMark(tmp_path / "j.sqlite").read()
    with monkeypatch.context() as failing:
        refusing(failing, number)
        with pytest.raises(InDoubtError, match=os.strerror(number)):
            write(journal, fact(2))
        with pytest.raises(JournalError, match=os.strerror(number)):
            journal.compact([], 1, frozenset())
    assert HighMark(tmp_path / "j.sqlite").read() == mark
    write(journal, fact(3))
    assert epochs(journal)[-1] == 3
    assert 2 not in epochs(journal)
    journal.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_allocates_no_block_may_keep_a_journal(number, tmp_path, monkeypatch):
    refusing(monkeypatch, number)
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    write(journal, fact(1))
    write(journal, fact(2))
    assert epochs(journal) == [1, 2]
    journal.close()


def test_after_a_disk_has_failed_the_journal_has_what_its_writer_was_told(tmp_path):
    program = [sys.executable, "-m", "tests.store.failing_disk", tmp_path, "12"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    failures = [json.loads(line) for line in done.stdout.splitlines()]
    if "why_not" in failures[0]:
        pytest.skip(f"no disk can be mounted here: {failures[0]['why_not']}")
    for failure in failures:
        acknowledged = list(range(1, failure["acknowledged"] + 1))
        more = failure["found"][len(acknowledged) :]
        assert failure["found"][: len(acknowledged)] == acknowledged
        assert more in ([], [len(acknowledged) + 1])
        assert not more or failure["failed"] == "in doubt"
        print(failure["failed"], "and it is there" if more else "")
