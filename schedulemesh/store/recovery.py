"""Recovery: from what is stored to the state."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import msgspec

from schedulemesh.engine.codec import decode_chunk, decode_facts
from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import restored
from schedulemesh.errors import JournalError


class Stored(msgspec.Struct, kw_only=True):
    """What a journal holds, as bytes: a snapshot and the records after it.

    The supervisor keeps it beside its state, so that it can go back to what is durable even while the
    journal cannot be read.
    """

    #: The number of the last commit that the snapshot tells.
    base: int = 0
    parts: list[bytes] = []
    #: Commits base + 1, base + 2 and so on.
    records: list[bytes] = []

    @property
    def last(self) -> int:
        """The number of the last commit."""
        return self.base + len(self.records)

    def copy(self) -> Stored:
        """The same, independent of what becomes of this one."""
        return Stored(base=self.base, parts=list(self.parts), records=list(self.records))

    def compact(self, parts: Sequence[bytes], upto: int) -> None:
        """Let a snapshot stand for all commits up to this number."""
        del self.records[: upto - self.base]
        self.base, self.parts = upto, list(parts)

    def facts(self) -> Iterator[AnyFact]:
        """The facts after the snapshot, in order. Raises JournalError where a record is none."""
        for number, record in enumerate(self.records, self.base + 1):
            try:
                yield from decode_facts(record)
            except msgspec.MsgspecError as error:
                raise JournalError(
                    f"commit {number} of the journal is no list of facts: {error}"
                ) from error

    def fold(self) -> MeshState:
        """The state. Raises JournalError where what is stored does not lead to one."""
        try:
            state = restored(map(decode_chunk, self.parts))
        except (msgspec.MsgspecError, zlib.error) as error:
            raise JournalError(f"the journal's snapshot cannot be read: {error}") from error
        try:
            for fact in self.facts():
                state.evolve(fact)
        except (KeyError, ValueError, IndexError) as error:
            raise JournalError(f"the journal's facts contradict each other: {error!r}") from error
        return state
