"""The journal protocol, and a journal in memory.

A journal contains *records* (the facts of one commit, in order), a *snapshot* that replaces the oldest of
them, *blobs* (classes, arguments, payloads and saved states, by the hash of their bytes), and *notes*
(small values of this scheduler that are not facts). ``append`` returns when record and blobs are durable.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Protocol

from schedulemesh.errors import JournalError, JournalTakenOverError
from schedulemesh.store.address import JournalAddress
from schedulemesh.store.recovery import Stored


class InDoubtError(JournalError):
    """A commit failed so late that it may be durable. It is known not to be once the next append succeeds; a
    supervisor that reads the journal before that may find it.
    """


class Journal(Protocol):
    """The durable store of a supervisor. Every method may raise JournalError."""

    @property
    def last(self) -> int:
        """The number of the last durable commit."""

    def begin(self, *, take_over: bool = False, above: int = 0) -> int:
        """Become the writer. Returns the new epoch, which is higher than any before and than ``above``;
        writers of older epochs can write no longer.

        A writer that is still running is an error, unless ``take_over``.
        """

    def load(self) -> Stored:
        """Everything that is durable, verified. Raises JournalError rather than return a part of it."""

    def append(self, record: bytes, blobs: Mapping[str, bytes]) -> None:
        """Make a record (empty: none) and blobs durable, all or none. After an error, the next append first
        removes what may have become durable of the failed one. Raises InDoubtError where that is possible,
        JournalTakenOverError after a takeover, and NotStorableError where the store can never take these
        values, for example because one is too large.
        """

    def compact(
        self,
        parts: Sequence[bytes],
        upto: int,
        keep: Container[str],
        keep_after: int | None = None,
    ) -> None:
        """Replace all commits up to number ``upto`` by a snapshot.

        Those after number ``keep_after`` stay stored for the history, though ``load`` does not return them
        (None: none stays); a later call removes them.
        Removes the blobs that are not in ``keep`` and were last given before the previous snapshot; newer
        ones may belong to a commit that is still to come.
        """

    def blob(self, key: str) -> bytes | None:
        """The bytes of a key; None: never stored, or removed."""

    def blob_sizes(self, keys: Iterable[str] | None = None) -> dict[str, int]:
        """The size in bytes of those of these blobs that are stored; None: of all."""

    def note(self, name: str) -> bytes | None:
        """The note of this name: a small value that is no fact, and so not part of the state. None: there is
        none.
        """

    def put_note(self, name: str, data: bytes) -> None:
        """Make a note durable, replacing the one of this name. Any thread may call it. Raises
        JournalTakenOverError after a takeover.
        """

    def place(self) -> JournalAddress | None:
        """Where it is stored, for the history that follows it; None: in memory."""

    def close(self) -> None:
        """Close files and connections."""

    def destroy(self) -> None:
        """Close, and remove everything that is stored. Raises JournalTakenOverError after a takeover, and
        removes nothing then.
        """


class MemoryJournal:
    """A journal in memory, for tests and simulations."""

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
        take_over: bool = False,  # noqa: ARG002  # a journal in memory has one writer
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
        self._claim()
        if record:
            self.stored.records.append(record)
        self._blobs.update((key, (self.last, data)) for key, data in blobs.items())

    def compact(
        self,
        parts: Sequence[bytes],
        upto: int,
        keep: Container[str],
        keep_after: int | None = None,  # noqa: ARG002  # no history follows a journal in memory
    ) -> None:
        """See Journal."""
        self._claim()
        before = self.stored.base
        self.stored.compact(parts, upto)
        self._blobs = {k: b for k, b in self._blobs.items() if k in keep or b[0] > before}

    def blob(self, key: str) -> bytes | None:
        """See Journal."""
        entry = self._blobs.get(key)
        return None if entry is None else entry[1]

    def blob_sizes(self, keys: Iterable[str] | None = None) -> dict[str, int]:
        """See Journal."""
        blobs = self._blobs
        stored_keys = blobs.keys() if keys is None else blobs.keys() & set(keys)
        return {key: len(blobs[key][1]) for key in stored_keys}

    def note(self, name: str) -> bytes | None:
        """See Journal."""
        return self._notes.get(name)

    def put_note(self, name: str, data: bytes) -> None:
        """See Journal."""
        self._claim()
        self._notes[name] = data

    def place(self) -> JournalAddress | None:
        """See Journal."""
        return None

    def close(self) -> None:
        """See Journal."""

    def destroy(self) -> None:
        """See Journal."""
        self._claim()
        self.stored = Stored()
        self._blobs.clear()
        self._notes.clear()

    def _claim(self) -> None:
        if self._mine != self._epoch:
            raise JournalTakenOverError(
                f"epoch {self._mine} is over; epoch {self._epoch} writes now"
            )
