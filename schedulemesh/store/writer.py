"""Group commit: what many callers append at once becomes durable in one commit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Mapping, Sequence

import msgspec

from schedulemesh.engine.facts import AnyFact
from schedulemesh.errors import JournalError
from schedulemesh.store.journal import Journal


class _Entry(msgspec.Struct, frozen=True):
    facts: Sequence[AnyFact]
    blobs: Mapping[str, bytes]
    done: asyncio.Future[None]


class GroupWriter:
    """Appends to a journal from a thread of its own, in the order in which ``append`` was called.

    While a commit is on its way to the disk, what arrives waits and goes with the next one. After a
    failure every entry fails until ``resume``: what comes after a lost fact must not become durable.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._last: asyncio.Future[None] | None = None
        self._broken: str | None = None
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    def append(
        self, facts: Sequence[AnyFact], blobs: Mapping[str, bytes] | None = None
    ) -> asyncio.Future[None]:
        """Done once the facts are durable; fails with JournalError."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._last = done
        self._entries.put(_Entry(facts, blobs or {}, done))
        return done

    async def flushed(self) -> None:
        """Return once everything appended so far is durable; raises JournalError if it is not."""
        last = self._last
        if last is not None and not last.done():
            await asyncio.shield(last)

    def resume(self) -> None:
        """Write again after a failure; the caller has gone back to what is durable."""
        self._broken = None

    async def close(self) -> None:
        """Write what is still queued, then end the thread."""
        self._entries.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while True:
            batch = [self._entries.get()]
            while not self._entries.empty():
                batch.append(self._entries.get())
            entries = [entry for entry in batch if entry is not None]
            error = self._write(entries) if entries else None
            self._loop.call_soon_threadsafe(_settle, entries, error)
            if None in batch:
                return

    def _write(self, entries: list[_Entry]) -> JournalError | None:
        if self._broken is not None:
            return JournalError(self._broken)
        facts = [fact for entry in entries for fact in entry.facts]
        blobs = {key: data for entry in entries for key, data in entry.blobs.items()}
        try:
            self._journal.append(facts, blobs)
        except Exception as error:  # noqa: BLE001  # those who wait must hear of it
            self._broken = str(error)
            return error if isinstance(error, JournalError) else JournalError(self._broken)
        return None


def _settle(entries: list[_Entry], error: JournalError | None) -> None:
    for entry in entries:
        if entry.done.cancelled():
            continue
        if error is None:
            entry.done.set_result(None)
        else:
            entry.done.set_exception(error)
