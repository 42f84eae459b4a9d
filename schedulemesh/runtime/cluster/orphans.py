"""Orphans: actors and placement groups of this scheduler that its journal does not know.

They exist after a backup was restored while agents ran: what was started after the backup was made is
unknown to it. Only an operator can decide whether it is still wanted, so it is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

import msgspec

from schedulemesh.errors import JournalError
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.journal import Journal

logger = logging.getLogger(__name__)

#: The journal's note of what is kept.
_NOTE = "orphans"


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    #: (namespace, name) in Ray.
    actors: tuple[tuple[str, str], ...] = ()
    groups: tuple[str, ...] = ()


class Orphans:
    """Keeps, lists and ends orphans; the journal notes which they are, for later processes."""

    def __init__(self, agents: Agents, groups: Groups, journal: Journal) -> None:
        self._agents = agents
        self._groups = groups
        self._journal = journal

    async def take(
        self, unclaimed: Collection[tuple[str, str]], *, rolled_back: bool
    ) -> list[tuple[str, str]]:
        """Of living actors that nobody claims: keep those that are orphans, and return the others."""
        recorded = await in_thread(self._read)
        self._groups.orphans = set(recorded.groups)
        self._agents.orphans = {a for a in unclaimed if rolled_back or a in recorded.actors}
        for _, name in sorted(self._agents.orphans):
            logger.warning("actor %s is unknown to the journal; it is kept as an orphan", name)
        return [address for address in unclaimed if address not in self._agents.orphans]

    async def note(self) -> None:
        """Store which actors and groups are orphans, for later processes."""
        orphans = _Kept(
            actors=tuple(sorted(self._agents.orphans)), groups=tuple(sorted(self._groups.orphans))
        )
        if orphans != await in_thread(self._read):
            note = msgspec.json.encode(orphans)
            await in_thread(lambda: self._journal.put_note(_NOTE, note))

    def forget_dead(self, living: Collection[tuple[str, str]]) -> None:
        """Forget orphans that ended by themselves."""
        self._agents.orphans &= set(living)

    async def end(self, names: Collection[str] | None = None) -> list[str]:
        """End the orphans with these names in Ray, or all; placement groups go with the last actor.

        Returns the names of those ended.
        """
        chosen = [a for a in sorted(self._agents.orphans) if names is None or a[1] in names]
        await self._end(chosen)
        await self.note()
        return [name for _, name in chosen]

    async def remove_all(self) -> None:
        """End all; the journal is not asked, because it is removed next."""
        await self._end(sorted(self._agents.orphans))

    async def _end(self, chosen: Collection[tuple[str, str]]) -> None:
        await asyncio.gather(*(self._agents.end_unclaimed(*address) for address in chosen))
        self._agents.orphans.difference_update(chosen)
        if not self._agents.orphans:
            await self._groups.remove_orphans()

    def _read(self) -> _Kept:
        try:
            noted = self._journal.note(_NOTE)
            return _Kept() if noted is None else msgspec.json.decode(noted, type=_Kept)
        except msgspec.MsgspecError as error:
            raise JournalError(f"the note of orphans cannot be read: {error}") from error
