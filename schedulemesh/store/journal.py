"""The journal protocol, and the one that forgets with its process.

A journal keeps *records* (the facts of one commit, in order), a *snapshot* that replaces the oldest of
them, *blobs* (bytes under the hash of what they are: classes, arguments, payloads, saved states), and
*notes* (small values of this scheduler that are no facts). ``append`` returns when record and blobs are
durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from schedulemesh.errors import JournalTakenOverError
from schedulemesh.store.recovery import Stored


class Journal(Protocol):
    """What the supervisor needs of its memory. Every method may raise JournalError."""

    @property
    def last(self) -> int:
        """The number of the last commit that is durable."""

    def begin(self, *, take_over: bool = False, above: int = 0) -> int:
        """Become the writer: returns the new epoch, higher than any before and than ``above``; older writers
        are out.

        A writer that lives is left alone, and that is an error, unless ``take_over``.
        """

    def load(self) -> Stored:
        """All that is durable, checked. Raises JournalError rather than give a part of it."""

    def append(self, record: bytes, blobs: Mapping[str, bytes]) -> None:
        """Make a record (empty: none) and blobs durable, all or none: after an error the next append
        first removes what of a failed one may have become durable. Raises JournalTakenOverError after a
        takeover.
        """

    def compact(self, parts: Sequence[bytes], upto: int, keep: AbstractSet[str]) -> None:
        """Put a snapshot in the place of all commits up to number ``upto``.

        Blobs that are not in ``keep`` and were last given before the snapshot before this one are
        forgotten; younger ones may be meant for a commit still to come.
        """

    def blob(self, key: str) -> bytes | None:
        """The bytes under a key; None: never stored, or forgotten."""

    def blob_sizes(self) -> dict[str, int]:
        """The bytes that each blob takes."""

    def note(self, name: str) -> bytes | None:
        """What was last noted under this name; None: nothing."""

    def put_note(self, name: str, data: bytes) -> None:
        """Make a note durable, in the place of the last of its name; any thread may, and any life."""

    def close(self) -> None:
        """Let go of files and connections."""

    def destroy(self) -> None:
        """Close, and forget everything."""


class MemoryJournal:
    """Keeps everything in memory, for tests and simulations."""

    def __init__(self) -> None:
        self.stored = Stored()
        self._blobs: dict[str, tuple[int, bytes]] = {}
        self._notes: dict[str, bytes] = {}
        self._epoch = 0
        self._mine = 0

    @property
    def last(self) -> int:
        """See Journal."""
        return self.stored.last

    def begin(
        self,
        *,
        take_over: bool = False,  # noqa: ARG002  # nobody else lives here
        above: int = 0,
    ) -> int:
        """See Journal."""
        self._epoch = max(self._epoch, above) + 1
        self._mine = self._epoch
        return self._epoch

    def load(self) -> Stored:
        """See Journal."""
        return self.stored.copy()

    def append(self, record: bytes, blobs: Mapping[str, bytes]) -> None:
        """See Journal."""
        if self._mine != self._epoch:
            raise JournalTakenOverError(
                f"epoch {self._mine} is over; epoch {self._epoch} writes now"
            )
        if record:
            self.stored.records.append(record)
        self._blobs.update((key, (self.last, data)) for key, data in blobs.items())

    def compact(self, parts: Sequence[bytes], upto: int, keep: AbstractSet[str]) -> None:
        """See Journal."""
        before = self.stored.base
        self.stored.compact(parts, upto)
        self._blobs = {k: b for k, b in self._blobs.items() if k in keep or b[0] > before}

    def blob(self, key: str) -> bytes | None:
        """See Journal."""
        found = self._blobs.get(key)
        return None if found is None else found[1]

    def blob_sizes(self) -> dict[str, int]:
        """See Journal."""
        return {key: len(data) for key, (_, data) in self._blobs.items()}

    def note(self, name: str) -> bytes | None:
        """See Journal."""
        return self._notes.get(name)

    def put_note(self, name: str, data: bytes) -> None:
        """See Journal."""
        self._notes[name] = data

    def close(self) -> None:
        """See Journal."""

    def destroy(self) -> None:
        """See Journal."""
        self.stored = Stored()
        self._blobs.clear()
        self._notes.clear()
