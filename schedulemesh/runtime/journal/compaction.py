"""Makes a snapshot of a journal from what it holds: an earlier snapshot and the facts after it.

The state in use is not needed for that, so no decision waits for a snapshot, however much is queued. What is
large is read and written by a process of its own, with which the supervisor does not share its interpreter.

``python -m schedulemesh.runtime.journal.compaction`` is that process: it reads a journal's content from its
standard input and writes the snapshot to its standard output, and ends without a word where either is closed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from typing import IO

import msgspec

from schedulemesh.engine.codec import encode_chunk
from schedulemesh.engine.state.snapshot import parts, referenced, take_snapshot
from schedulemesh.errors import JournalError
from schedulemesh.store.blob_keys import portions
from schedulemesh.store.recovery import Stored

logger = logging.getLogger(__name__)

#: Bytes of stored content from which a process is started: so much takes about a second.
PROCESS_BYTES = 1024 * 1024
#: Bytes of a number in a pipe.
_NUMBER = 8
#: The process has a lower priority than the supervisor.
_NICE = 10


class Compacted(msgspec.Struct, frozen=True):
    """A snapshot as it is stored."""

    parts: list[bytes]
    #: The keys of the stored bytes to which it refers, see ``blob_keys.portions``.
    keys: list[bytes]


def compacted(stored: Stored) -> Compacted:
    """The snapshot that replaces all that is stored. Raises JournalError if that cannot be read."""
    snapshot = take_snapshot(stored.fold())
    chunks = [encode_chunk(part) for part in parts(snapshot)]
    return Compacted(chunks, portions(referenced(snapshot)))


class Compaction:
    """Makes one snapshot at a time, in a thread of the caller's."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def run(self, stored: Stored) -> Compacted:
        """The snapshot. Raises JournalError if what is stored cannot be read, or after ``end``."""
        if sum(map(len, stored.parts)) + sum(map(len, stored.records)) >= PROCESS_BYTES:
            try:
                return self._in_process(stored)
            except (OSError, EOFError) as error:
                if self._ended:
                    raise JournalError("the journal is being closed") from error
                logger.warning("a process that makes a snapshot has failed: %s", error)
        return compacted(stored)

    def end(self) -> None:
        """End the process; any thread may call it."""
        self._ended = True
        if (process := self._process) is not None:
            process.kill()

    def _in_process(self, stored: Stored) -> Compacted:
        path = os.pathsep.join(filter(None, sys.path))
        with subprocess.Popen(  # noqa: S603  # this module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        ) as process:
            self._process = process
            try:
                if self._ended or process.stdin is None or process.stdout is None:
                    raise EOFError("the process is not needed any more")
                write_entries(process.stdin, stored.parts)
                write_entries(process.stdin, stored.records)
                process.stdin.close()
                chunks = list(read_entries(process.stdout))
                keys = list(read_entries(process.stdout))
            finally:
                self._process = None
                process.kill()
        return Compacted(chunks, keys)


def write_entries(file: IO[bytes], entries: Collection[bytes]) -> None:
    """Write how many these are, and each of them after its length."""
    file.write(len(entries).to_bytes(_NUMBER, "big"))
    for entry in entries:
        file.write(len(entry).to_bytes(_NUMBER, "big"))
        file.write(entry)
    file.flush()


def read_entries(file: IO[bytes]) -> Iterator[bytes]:
    """What was written so. Raises EOFError where the file ends before."""
    for _ in range(_read_number(file)):
        yield _read(file, _read_number(file))


def _read_number(file: IO[bytes]) -> int:
    return int.from_bytes(_read(file, _NUMBER), "big")


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError(f"{len(data)} of {size} bytes came before the end")
    return data


def main() -> None:
    """Read from the standard input, write to the standard output."""
    os.nice(_NICE)
    try:
        chunks = list(read_entries(sys.stdin.buffer))
        stored = Stored(parts=chunks, records=list(read_entries(sys.stdin.buffer)))
        made = compacted(stored)
        write_entries(sys.stdout.buffer, made.parts)
        write_entries(sys.stdout.buffer, made.keys)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the supervisor has ended; nothing is flushed into a closed pipe


if __name__ == "__main__":
    main()
