"""The journal protocol, and the one that forgets with its process.

A journal keeps *records* (the facts of one commit, in order) and *blobs* (bytes under the hash of what
they are: classes, arguments, payloads, saved states). ``append`` returns when both are durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from schedulemesh.engine.codec import decode_facts, encode_facts
from schedulemesh.engine.facts import AnyFact
from schedulemesh.errors import JournalError


class Journal(Protocol):
    """What the supervisor needs of its memory. Every method may raise JournalError."""

    def begin(self) -> int:
        """Take the journal over: returns the new epoch, higher than any before; older writers are out."""

    def append(self, facts: Sequence[AnyFact], blobs: Mapping[str, bytes]) -> None:
        """Make facts and blobs durable, all or none. Raises JournalError after a takeover."""

    def facts(self) -> Iterator[AnyFact]:
        """Every fact ever appended, in order."""

    def blob(self, key: str) -> bytes | None:
        """The bytes under a key; None: never stored."""

    def drop_blobs(self, keys: Iterable[str]) -> None:
        """Forget these blobs."""

    def close(self) -> None:
        """Let go of files and connections."""

    def destroy(self) -> None:
        """Close, and forget everything."""


class MemoryJournal:
    """Keeps encoded records in memory, for tests and simulations."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._blobs: dict[str, bytes] = {}
        self._epoch = 0
        self._mine = 0

    def begin(self) -> int:
        """See Journal."""
        self._epoch += 1
        self._mine = self._epoch
        return self._epoch

    def append(self, facts: Sequence[AnyFact], blobs: Mapping[str, bytes]) -> None:
        """See Journal."""
        if self._mine != self._epoch:
            raise JournalError(f"epoch {self._mine} is over; epoch {self._epoch} writes now")
        if facts:
            self._records.append(encode_facts(facts))
        self._blobs.update(blobs)

    def facts(self) -> Iterator[AnyFact]:
        """See Journal."""
        for record in self._records:
            yield from decode_facts(record)

    def blob(self, key: str) -> bytes | None:
        """See Journal."""
        return self._blobs.get(key)

    def drop_blobs(self, keys: Iterable[str]) -> None:
        """See Journal."""
        for key in keys:
            self._blobs.pop(key, None)

    def close(self) -> None:
        """See Journal."""

    def destroy(self) -> None:
        """See Journal."""
        self._records.clear()
        self._blobs.clear()
