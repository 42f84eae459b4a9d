"""Recovery: rebuilds the state from what is stored."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import msgspec

from schedulemesh.engine.codec import decode_chunk, decode_facts
from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import restored
from schedulemesh.errors import JournalError

_ANOTHER_VERSION = (
    "Another version of ScheduleMesh wrote it, before formats had numbers of their own: open it with that "
    "version, or choose another state_path"
)


class Stored(msgspec.Struct, kw_only=True):
    """The content of a journal as bytes: a snapshot and the records after it.

    The supervisor keeps a copy in memory, so that it can return to what is durable even while the journal
    cannot be read.
    """

    #: The number of the last commit that the snapshot covers.
    base: int = 0
    parts: list[bytes] = []
    #: Commits base + 1, base + 2 and so on.
    records: list[bytes] = []

    @property
    def last(self) -> int:
        """The number of the last commit."""
        return self.base + len(self.records)

    def copy(self) -> Stored:
        """An independent copy."""
        return Stored(base=self.base, parts=list(self.parts), records=list(self.records))

    def compact(self, parts: Sequence[bytes], upto: int) -> None:
        """Replace all commits up to this number by a snapshot."""
        del self.records[: upto - self.base]
        self.base, self.parts = upto, list(parts)

    def facts(self) -> Iterator[AnyFact]:
        """The facts after the snapshot, in order. Raises JournalError for a record that cannot be decoded."""
        for number, record in enumerate(self.records, self.base + 1):
            try:
                yield from decode_facts(record)
            except msgspec.MsgspecError as error:
                raise JournalError(
                    f"commit {number} of the journal cannot be read: {error}. {_ANOTHER_VERSION}"
                ) from error

    def fold(self) -> MeshState:
        """The state. Raises JournalError if what is stored cannot be decoded or is contradictory."""
        try:
            state = restored(map(decode_chunk, self.parts))
        except (msgspec.MsgspecError, zlib.error) as error:
            raise JournalError(
                f"the journal's snapshot cannot be read: {error}. {_ANOTHER_VERSION}"
            ) from error
        try:
            for fact in self.facts():
                state.evolve(fact)
        except (KeyError, ValueError, IndexError) as error:
            raise JournalError(f"the journal's facts contradict each other: {error!r}") from error
        return state
