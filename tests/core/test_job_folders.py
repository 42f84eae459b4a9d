"""The logs of jobs: written in segments, read in pieces, removed when they are old or too many."""

from __future__ import annotations

import errno
import time

import pytest

from schedulemesh.api.logs import TaskKey
from schedulemesh.core.agent import job_folders
from schedulemesh.core.agent.job_folders import (
    KEPT_S,
    SEGMENTS,
    LogWriter,
    attempts_in,
    job_folder,
    occupy,
    prune,
    read_log,
    task_folder,
)


def key(task_id, root="/r", agent_name="a"):
    return TaskKey(root=root, namespace="n", scheduler="s", task_id=task_id, agent_name=agent_name)


def written(folder, attempt, *parts, segment_bytes=1000):
    log = LogWriter(folder, attempt, segment_bytes)
    for part in parts:
        log.write(part)
    log.close()
    return log


def test_what_is_written_is_read_at_once_and_from_any_position(tmp_path):
    log = LogWriter(tmp_path, 1)
    log.write(b"hello ")
    assert read_log(tmp_path, None, 0, 100).data == b"hello "
    log.write(b"world\n")

    piece = read_log(tmp_path, 1, 6, 3)

    assert (piece.attempt, piece.begin, piece.data, piece.end) == (1, 6, b"wor", 12)
    assert read_log(tmp_path, 1, -6, 100).data == b"world\n"
    assert read_log(tmp_path, 1, -600, 100).data == b"hello world\n"
    assert read_log(tmp_path, 1, 50, 100).data == b""
    assert log.last_line == "hello world"
    log.close()


def test_the_last_attempt_is_read_unless_another_is_named(tmp_path):
    for attempt in (1, 2, 10):
        written(tmp_path, attempt, b"attempt %d" % attempt)
    assert attempts_in(tmp_path) == [1, 2, 10]
    assert read_log(tmp_path, None, 0, 100).data == b"attempt 10"
    assert read_log(tmp_path, 2, 0, 100).data == b"attempt 2"
    assert read_log(tmp_path, 3, 0, 100) is None
    assert read_log(tmp_path / "nowhere", None, 0, 100) is None


def test_a_long_log_keeps_its_end_at_its_positions(tmp_path):
    line = b"0123456789"
    written(tmp_path, 1, *[line] * 100, segment_bytes=20)

    piece = read_log(tmp_path, 1, 0, 10_000)

    assert piece.end == 1000
    assert piece.begin + len(piece.data) == 1000
    assert 0 < len(piece.data) <= 20 * SEGMENTS
    assert set(piece.data) == set(line)
    assert read_log(tmp_path, 1, 995, 100).data == b"56789"


def test_an_attempt_that_has_written_before_continues_its_log(tmp_path):
    written(tmp_path, 1, b"first ")
    written(tmp_path, 1, b"second")
    assert read_log(tmp_path, 1, 0, 100).data == b"first second"


class NearlyFull:
    """A file on a disk that takes a few bytes of each write, then none until there is room again."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = min(3, self.room)
        self.room -= count
        return self.file.write(data[:count])

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_log_is_read_on_after_the_disk_was_full(tmp_path):
    log = LogWriter(tmp_path, 1, segment_bytes=10)
    log._file = NearlyFull(log._file, 8)

    with pytest.raises(OSError, match="No space"):
        log.write(b"0123456789abc")
    log._file = log._file.file
    for part in (b"more ", b"and more ", b"end"):
        log.write(part)
    log.close()

    assert read_log(tmp_path, 1, 0, 100).data == b"01234567more and more end"
    assert log.last_line == "0123456789abcmore and more end"


def test_bytes_that_are_missing_in_a_log_are_passed_over(tmp_path):
    for begin, text in ((0, b"0123"), (10, b"abcd"), (14, b"ef")):
        (tmp_path / f"1.{begin}.log").write_bytes(text)

    pieces = [read_log(tmp_path, 1, begin, 100) for begin in (0, 4, 7, 12, 16)]

    assert [(piece.begin, piece.data) for piece in pieces] == [
        (0, b"0123"),
        (10, b"abcdef"),
        (10, b"abcdef"),
        (12, b"cdef"),
        (16, b""),
    ]
    assert (read_log(tmp_path, 1, 0, 2).data, read_log(tmp_path, 1, 11, 4).data) == (b"01", b"bcde")


def test_a_log_whose_first_segment_is_removed_is_read_from_the_next(tmp_path, monkeypatch):
    written(tmp_path, 1, *[b"0123456789"] * 3, segment_bytes=10)
    listed = job_folders._segments

    def removed_after_it_was_listed(folder, attempt):
        segments = listed(folder, attempt)
        segments[0].path.unlink(missing_ok=True)
        return segments

    monkeypatch.setattr(job_folders, "_segments", removed_after_it_was_listed)
    piece = read_log(tmp_path, 1, 0, 100)

    assert (piece.begin, piece.data, piece.end) == (10, b"0123456789" * 2, 30)


def test_the_folder_of_a_running_job_stays_whatever_the_clock_says(tmp_path):
    runs, ended = (key(name, str(tmp_path)) for name in ("runs", "ended"))
    for of_job in (runs, ended):
        (job_folder(of_job) / "attempt-1").mkdir(parents=True)
    late = time.time() + 10 * KEPT_S

    with occupy(job_folder(runs)), occupy(job_folder(ended)):
        prune(job_folder(key("other", str(tmp_path))), late)
        assert job_folder(ended).is_dir()
    with occupy(job_folder(runs)):
        prune(job_folder(key("other", str(tmp_path))), late)

    assert job_folder(runs).is_dir()
    assert not job_folder(ended).exists()


@pytest.mark.parametrize(
    ("parts", "last"),
    [
        ((b"one\ntwo\n",), "two"),
        ((b"one\ntw", b"o"), "two"),
        ((b"one\n", b"two\n", b"\n\n"), "two"),
        ((b"\xff\n",), "\\xff"),
        ((), ""),
        ((b"a\rbc\td\n",), "bc\td"),
        ((b"one\n", b"\x1b[0m\x1b[?25h\n"), "one"),
        ((b"\x1b[1;31mtwo\x1b[0m\n\x1b]0;title\x07\n",), "two"),
        ((b"one\n\x1b[2K\r 50%|\xe2\x96\x88| 1/2\r\x1b[A\x1b[K",), "50%|\u2588| 1/2"),
        ((b"one\n\x1b(B\x1b=\x1b7\n",), "one"),
        ((b"a\x00b\n",), "a\\x00b"),
        ((b"x" * 9000 + b"end",), "x" * 497 + "end"),
    ],
)
def test_the_last_line_is_known(tmp_path, parts, last):
    assert written(tmp_path, 1, *parts).last_line == last


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "研究", "x" * 253])
def test_no_task_id_leaves_the_folder_of_its_scheduler(tmp_path, name):
    parent = task_folder(key("plain", str(tmp_path))).parent
    folder = task_folder(key(name, str(tmp_path)))
    assert folder.parent == parent
    assert folder.resolve() == folder
    folder.mkdir(parents=True)


def test_names_that_look_alike_have_folders_of_their_own():
    assert len({job_folder(key(name)) for name in ("a/b", "a_b", "a.b", "A_b")}) == 4


def test_a_job_that_has_an_id_of_former_times_has_its_own_logs_and_finds_the_checkpoints():
    first, second = key("t", agent_name="p-agent-1"), key("t", agent_name="p-agent-2")
    assert job_folder(first) != job_folder(second)
    assert task_folder(first) == task_folder(second)


def test_old_folders_are_removed_and_checkpoints_are_kept(tmp_path):
    root = str(tmp_path)
    names = ("old", "a"), ("kept", "a"), ("mine", "before"), ("mine", "a")
    keys = [key(task_id, root, agent_name) for task_id, agent_name in names]
    for of_job in keys:
        (job_folder(of_job) / "attempt-1").mkdir(parents=True)
        (task_folder(of_job) / "checkpoint").mkdir(exist_ok=True)
        written(job_folder(of_job), 1, b"text")
    old, kept, before, mine = keys
    (task_folder(kept) / "checkpoint" / "model").write_text("weights")
    newest = max(p.stat().st_mtime for p in tmp_path.rglob("*"))

    prune(job_folder(mine), newest + KEPT_S - 60)
    assert all(job_folder(of_job).is_dir() for of_job in keys)
    prune(job_folder(mine), newest + KEPT_S + 60)

    assert not task_folder(old).exists()
    assert [p.name for p in task_folder(kept).iterdir()] == ["checkpoint"]
    assert not job_folder(before).exists()
    assert read_log(job_folder(mine), 1, 0, 100).data == b"text"
