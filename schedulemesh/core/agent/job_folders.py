"""Where the attempts of a job keep their logs and files on a node, and how the logs are written and read.

The folder of a job is found by its scheduler and task id alone, so that whoever reads a log names no path. A
log is a sequence of segments, files that are named after the attempt and the position of their first byte.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from schedulemesh.api.logs import LogPiece, TaskKey
from schedulemesh.config.private_files import open_private

#: Bytes of a segment, and how many segments of an attempt are kept: the first is removed for one more.
SEGMENT_BYTES, SEGMENTS = 16 * 1024 * 1024, 8
#: Seconds for which the folders of jobs that have ended are kept.
KEPT_S = 7 * 86400.0
#: The file that is locked while an attempt runs.
_LOCK = "lock"
#: Bytes among which the last line is looked for.
_TAIL_BYTES = 4096
#: Characters of a task id that its folder's name shows, and of the last line of a log.
_SHOWN, _SHOWN_OF_LINE = 60, 500

_SEGMENT = re.compile(r"(\d+)\.(\d+)\.log")
#: What a terminal obeys and does not show: colours, movements of the cursor, titles of windows.
_TERMINAL_CODE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)


class _Segment(NamedTuple):
    begin: int
    path: Path

    @property
    def end(self) -> int:
        """The position after its last byte."""
        try:
            return self.begin + self.path.stat().st_size
        except FileNotFoundError:
            return self.begin


def task_folder(key: TaskKey) -> Path:
    """The folder of a task id on this node, in which the checkpoints are: jobs of one id share them."""
    return (
        Path(key.root)
        / "jobs"
        / folder_name(key.namespace)
        / folder_name(key.scheduler)
        / folder_name(key.task_id)
    )


def job_folder(key: TaskKey) -> Path:
    """The folder of a job on this node. One that has ended, and whose id was used again, has left another:
    neither its logs nor the notice of its eviction are those of the new job.
    """
    return task_folder(key) / folder_name(key.agent_name)


def folder_name(name: str) -> str:
    """A name of a folder that no other name has: a readable part, and a hash of the whole."""
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_SHOWN]
    return f"{shown}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


class LogWriter:
    """Writes what an attempt prints; the segments that are too many are removed, the first ones first."""

    def __init__(self, folder: Path, attempt: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder, self._attempt, self._segment_bytes = folder, attempt, segment_bytes
        segments = _segments(folder, attempt)
        #: Of an attempt that has written before, its log goes on.
        self._position = segments[-1].end if segments else 0
        self._file = self._open()
        #: The last bytes.
        self._tail = b""
        self._lock = threading.Lock()

    def say(self, message: str) -> None:
        """Append a line of the scheduler, unless the log is closed or the disk full."""
        with suppress(OSError, ValueError):
            self.write(f"[schedulemesh] {message}\n".encode())

    def write(self, data: bytes) -> None:
        """Append bytes, which can be read at once. Raises OSError where the disk is full: what is not written
        then is lost, and what comes later follows what is.
        """
        with self._lock:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            remaining = memoryview(data)
            while remaining:
                # On a disk that is nearly full, only a part of it may be written.
                count = self._file.write(remaining) or 0
                self._position += count
                remaining = remaining[count:]
            if self._file.tell() >= self._segment_bytes:
                self._next_segment()

    def _next_segment(self) -> None:
        following = self._open()
        self._file.close()
        self._file = following
        for old in _segments(self._folder, self._attempt)[:-SEGMENTS]:
            old.path.unlink(missing_ok=True)

    @property
    def last_line(self) -> str:
        """The last line that shows something, of a long one its end, without the codes that a terminal obeys,
        and with other characters that cannot be printed escaped; empty: there is none.
        """
        text = self._tail.decode(errors="backslashreplace")
        for line in reversed(_TERMINAL_CODE.sub("", text).splitlines()):
            if shown := line.replace("\b", "").strip():
                return "".join(_printable(char) for char in shown[-_SHOWN_OF_LINE:])
        return ""

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def _open(self) -> FileIO:
        path = self._folder / f"{self._attempt}.{self._position}.log"
        return open(path, "ab", buffering=0, opener=open_private)


def _printable(char: str) -> str:
    return char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode()


def read_log(folder: Path, attempt: int | None, begin: int, limit: int) -> LogPiece | None:
    """At most ``limit`` bytes of an attempt's log (None: of the last attempt) from a position on; a negative
    one counts from the end. Bytes that are missing in between are passed over. None: there is no log.
    """
    numbers = attempts_in(folder)
    if not numbers or (attempt is not None and attempt not in numbers):
        return None
    attempt = numbers[-1] if attempt is None else attempt
    segments = _segments(folder, attempt)
    if not segments:  # they have been removed just now
        return None
    first, end = segments[0].begin, segments[-1].end
    begin = max(first, end + begin if begin < 0 else begin)
    data = b""
    for segment in segments:
        position = begin + len(data)
        if segment.end <= position:
            continue
        if len(data) == limit or (data and segment.begin > position):
            break
        begin = max(begin, segment.begin) if not data else begin
        with suppress(FileNotFoundError), segment.path.open("rb") as file:
            file.seek(begin + len(data) - segment.begin)
            data += file.read(limit - len(data))
    return LogPiece(attempt=attempt, begin=begin, data=data, end=max(end, begin + len(data)))


def attempts_in(folder: Path) -> list[int]:
    """The numbers of the attempts that have a log here, in their order."""
    return sorted({int(match[1]) for _, match in _logs(folder)})


def occupy(folder: Path) -> FileIO:
    """Keep a folder from being removed, whatever the clock says, until the file is closed or this process
    ends.
    """
    file = open(  # noqa: SIM115  # the caller closes it
        folder / _LOCK, "ab", buffering=0, opener=open_private
    )
    with suppress(OSError):  # a file system without locks, or another process of the same attempt
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def prune(folder: Path, now: float | None = None) -> None:
    """Remove the folders of jobs beside this one that nothing was written to for long, and that no process
    occupies: jobs that have ended. Folders with checkpoints stay: they are the user's.
    """
    limit = (time.time() if now is None else now) - KEPT_S
    for job in folder.parent.parent.glob("*/*"):
        old = job != folder and job.name != "checkpoint" and _newest(job) <= limit
        if old and not _is_occupied(job):
            shutil.rmtree(job, ignore_errors=True)
            # What is not empty stays.
            for emptied in (job.parent / "checkpoint", job.parent):
                with suppress(OSError):
                    emptied.rmdir()


def _is_occupied(folder: Path) -> bool:
    try:
        with open(folder / _LOCK, "ab", opener=open_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it has no such file, or its file system no locks: its age alone decides
        return False
    return False


def contains_file(folder: Path) -> bool:
    """Whether there is a file in a folder, or in one below it."""
    return any(files for _, _, files in os.walk(folder))


def last_written(folder: Path, limit: float = math.inf) -> float:
    """When a file below a folder was last written, in seconds since 1970; 0: there is none. Files with a time
    after ``limit`` do not count.
    """
    newest = 0.0
    for at, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                written_at = (Path(at) / name).stat().st_mtime
                if newest < written_at <= limit:
                    newest = written_at
    return newest


def _newest(folder: Path) -> float:
    """When something was last written below a folder."""
    times = [0.0]
    for at, _, files in os.walk(folder):
        for name in (".", *files):
            with suppress(FileNotFoundError):
                times.append((Path(at) / name).stat().st_mtime)
    return max(times)


def _segments(folder: Path, attempt: int) -> list[_Segment]:
    segments = (
        _Segment(int(match[2]), path) for path, match in _logs(folder) if int(match[1]) == attempt
    )
    return sorted(segments)


def _logs(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        match = _SEGMENT.fullmatch(path.name)
        if match is not None:
            yield path, match
