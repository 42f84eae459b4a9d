"""What Ray's own store knows of a scheduler's processes, independent of its journal.

Agents live as long as this Ray does, and so does this. It tells a supervisor that begins whether its
journal is older than what was already true: then another copy was put in its place, and agents live that
the journal does not know.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The highest epoch that any supervisor of a scheduler took, and the newest commit noted in it."""

    epoch: int = 0
    last: int = 0
    #: Whether a process has begun and not yet distinguished orphans from actors that may be ended.
    unresolved: bool = False


class KeptByRay(Protocol):
    """Small values in Ray's own store."""

    async def recall(self, key: str) -> bytes | None:
        """What was kept under a key; None: nothing."""

    async def keep(self, key: str, value: bytes | None) -> None:
        """Keep a value, or with None nothing any more."""


class Witness:
    """Reads and writes what Ray knows of one scheduler."""

    def __init__(self, ray_kv: KeptByRay, namespace: str, name: str) -> None:
        self._kept = ray_kv
        self._key = f"{namespace}/{name}"
        self._noted: Seen | None = None

    async def seen(self) -> Seen | None:
        """None: no supervisor of this scheduler ever began in this Ray."""
        stored = await self._kept.recall(self._key)
        return None if stored is None else msgspec.json.decode(stored, type=Seen)

    async def note(self, seen: Seen) -> None:
        """Note how far it came, unless that is what was noted last, or a successor has begun."""
        if seen == self._noted or await self.has_successor(seen.epoch):
            return
        await self._kept.keep(self._key, msgspec.json.encode(seen))
        self._noted = seen

    async def has_successor(self, epoch: int) -> bool:
        """Whether a supervisor has begun that has a higher epoch."""
        seen = await self.seen()
        return seen is not None and seen.epoch > epoch

    async def forget(self) -> None:
        """The scheduler has been shut down."""
        await self._kept.keep(self._key, None)
