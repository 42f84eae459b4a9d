"""The disk of a story: how long its snapshots take, which of its calls fail, and what is found on it."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from schedulemesh.engine.state.snapshot import referenced, take_snapshot
from schedulemesh.errors import JournalError
from tests.runtime.sliced_thread import SlicedThread

#: The calls of a disk that may fail: before they have taken effect, or after it.
FAILURES = ("blob_sizes", "parts", "compact", "compacted", "append")

#: The fields of a snapshot whose order means nothing: by pool, in the order in which each was counted first.
UNORDERED = ("owners", "owners_changed")


class StoryDisk:
    """What happens to the snapshots and commits of a story's supervisors."""

    def __init__(self, seen):
        self._seen = seen
        #: Virtual seconds that each part of a snapshot takes from now on.
        self.slice_s = 0.01
        #: How many of the next calls fail.
        self.failing = Counter()

    def check(self, call):
        """Fail a call that is to."""
        if self.failing[call]:
            self.failing[call] -= 1
            self._seen[f"the disk failed: {call}"] += 1
            raise JournalError("the disk has failed")

    async def work(self, call):
        """Take the place of ``in_thread`` for the work of snapshots."""
        if getattr(getattr(call, "func", None), "__name__", "") != "_written":
            return call()
        self.check("parts")
        thread = SlicedThread(call)
        thread.start()
        self._seen["a snapshot began"] += 1
        try:
            thread.go_on()
            while not thread.is_over:
                await asyncio.sleep(self.slice_s)  # virtual time
                thread.go_on()
        except asyncio.CancelledError:
            self._seen["a snapshot was interrupted"] += 1
            raise
        finally:
            thread.end()
        if thread.error is not None:
            raise thread.error
        return thread.result


class StoryJournal:
    """A journal on the disk of a story, whose facts are followed once they are durable. Nothing that a killed
    process has still to write gets there.
    """

    def __init__(self, journal, disk, record, seen):
        self._journal, self._disk, self._record, self._seen = journal, disk, record, seen
        self._commits = 0
        self.is_killed = False

    def append(self, record, blobs):
        """See Journal."""
        self._insist_it_lives()
        self._disk.check("append")
        self._journal.append(record, blobs)
        if record:
            self._record.follow(record)

    def compact(self, parts, upto, *more):
        """See Journal."""
        self._insist_it_lives()
        self._disk.check("compact")
        self._seen["a snapshot replaced commits"] += 1
        self._seen["commits came while a snapshot was written"] += self._journal.last > upto
        self._journal.compact(parts, upto, *more)
        self._disk.check("compacted")

    def blob_sizes(self, keys=None):
        """See Journal."""
        self._disk.check("blob_sizes")
        return self._journal.blob_sizes(keys)

    def put_note(self, name, data):
        """See Journal."""
        self._insist_it_lives()
        self._journal.put_note(name, data)

    def _insist_it_lives(self):
        if self.is_killed:
            raise JournalError("the process was killed")

    def __getattr__(self, name):
        return getattr(self._journal, name)


def check_stored(journal, state):
    """What is stored leads to the state that was acknowledged, and has all bytes to which that refers."""
    picture = take_snapshot(journal.load().fold())
    stored, acknowledged = comparable(picture), comparable(take_snapshot(state))
    lost = {field: (stored[field], acknowledged[field]) for field in stored}
    lost = {field: pair for field, pair in lost.items() if pair[0] != pair[1]}
    assert not lost, f"stored is something else than was acknowledged: {lost}"
    missing = referenced(picture) - journal.blob_sizes().keys()
    assert not missing, f"bytes are lost to which the state refers: {missing}"


def comparable(snapshot):
    """The fields of a snapshot; where the order of entries means nothing, in one order."""
    fields = msgspec.structs.asdict(snapshot)
    return {**fields, **{field: sorted(fields[field], key=repr) for field in UNORDERED}}
