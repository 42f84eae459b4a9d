"""Group commit: what is appended while a commit is in progress becomes durable in the next commit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec

from schedulemesh.engine.codec import joined, storable
from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.errors import JournalError, NotStorableError
from schedulemesh.store.journal import Journal
from schedulemesh.store.recovery import Stored


class _Entry(msgspec.Struct, frozen=True):
    #: The facts as they are stored; empty: none.
    record: bytes
    facts: int
    blobs: Mapping[str, bytes]
    done: asyncio.Future[Any]


class _Call(msgspec.Struct, frozen=True):
    """A function that the thread calls between two commits, also after a failure."""

    call: Callable[[], Any]
    done: asyncio.Future[Any]


class GroupWriter:
    """Appends to a journal from a thread of its own, in the order in which ``append`` was called.

    What is appended while a commit is in progress waits for the next one. After a failure every entry
    fails until ``resume``: nothing that follows a lost fact may become durable. Where the store refuses the
    content of a commit, those entries before the one at fault become durable, that one fails with
    NotStorableError, and those after it with JournalError, unless it has no facts: then nothing follows it.
    """

    def __init__(self, journal: Journal, stored: Stored) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._entries: queue.SimpleQueue[_Entry | _Call | None] = queue.SimpleQueue()
        self._last: asyncio.Future[Any] | None = None
        #: The failure after which nothing is written.
        self._broken: JournalError | None = None
        #: Everything that is durable. Only the thread changes it; read it only while ``broken``.
        self.stored = stored
        #: Facts, and bytes of records and of blobs, since the last snapshot.
        self.fresh_facts, self.fresh_bytes = 0, sum(map(len, self.stored.records))
        self.fresh_blob_bytes = 0
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Whether a commit failed, so that nothing is written until ``resume``."""
        return self._broken is not None

    @property
    def failure(self) -> str:
        """Why the commit failed after which nothing is written; empty: none has."""
        return "" if self._broken is None else str(self._broken)

    def append(
        self, facts: Sequence[AnyFact], blobs: Mapping[str, bytes] | None = None
    ) -> asyncio.Future[None]:
        """Done once the facts are durable; fails with JournalError.

        Raises NotStorableError immediately for facts that would not decode to the same values.
        """
        done = self._put(_Entry, storable(facts) if facts else b"", len(facts), blobs or {})
        if facts:
            self._last = done
        return done

    def copy(self) -> asyncio.Future[Stored]:
        """A copy of what is stored with all that was appended so far; fails with JournalError."""
        return self._put(_Call, self._copy)

    def mark(self) -> asyncio.Future[Stored]:
        """As ``copy``, and what is fresh is counted anew from there; for a snapshot."""
        return self._put(_Call, self._mark)

    def compact(
        self,
        parts: Sequence[bytes],
        upto: int,
        keep: Container[str],
        keep_after: int | None = None,
    ) -> asyncio.Future[None]:
        """Done once the snapshot has replaced all commits up to this number, of which those after
        ``keep_after`` stay stored; fails with JournalError.
        """
        return self._put(_Call, lambda: self._compact(parts, upto, keep, keep_after))

    def resume(self) -> asyncio.Future[None]:
        """Try to write again after a failure; the caller has returned to what is durable.

        Done once it works and all failed entries have been answered; fails with JournalError.
        """
        return self._put(_Call, self._resume)

    def pending(self) -> asyncio.Future[None] | None:
        """The future of the facts that were appended last; None: all are durable. Raises JournalError if a
        commit failed.
        """
        self._insist_it_works()
        last = self._last
        return None if last is None or last.done() else last

    async def flushed(self) -> None:
        """Return once everything appended so far is durable; raises JournalError if it is not."""
        last = self.pending()
        if last is not None:
            try:
                await asyncio.shield(last)
            except NotStorableError as error:
                raise after_refusal(error) from error

    async def close(self) -> None:
        """Write what is still queued, then end the thread."""
        self._entries.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _put(self, kind: Callable[..., _Entry | _Call], *content: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self._loop.create_future()
        self._entries.put(kind(*content, done))
        return done

    def _run(self) -> None:
        while True:
            batch = [self._entries.get()]
            while not self._entries.empty():
                batch.append(self._entries.get())
            waiting: list[_Entry] = []
            for item in [*batch, None]:
                if isinstance(item, _Entry):
                    waiting.append(item)
                    continue
                if waiting:
                    self._write_and_tell(waiting)
                    waiting = []
                if item is not None:
                    self._tell([item.done], *self._attempt(item.call))
            if None in batch:
                return

    def _attempt(
        self, call: Callable[[], Any]
    ) -> tuple[Any, JournalError | NotStorableError | None]:
        try:
            return call(), None
        except (JournalError, NotStorableError) as error:
            return None, error
        except Exception as error:  # noqa: BLE001  # the callers that wait must get the error
            return None, JournalError(f"the journal failed: {error!r}")

    def _write_and_tell(self, entries: Sequence[_Entry]) -> None:
        """Write the entries in one commit, or one by one where the store refuses the content of one."""
        error = self._write(entries)
        if isinstance(error, NotStorableError) and len(entries) > 1:
            for entry in entries:
                self._write_and_tell([entry])
            return
        undoes_nothing = isinstance(error, NotStorableError) and not entries[0].facts
        if error is not None and self._broken is None and not undoes_nothing:
            self._broken = error if isinstance(error, JournalError) else after_refusal(error)
        self._tell([entry.done for entry in entries], None, error)

    def _write(self, entries: Sequence[_Entry]) -> JournalError | NotStorableError | None:
        if self._broken is not None:
            return JournalError(str(self._broken))
        _, error = self._attempt(lambda: self._append(entries))
        return error

    def _append(self, entries: Sequence[_Entry]) -> None:
        """Write the entries in one commit. Whatever fails, ``stored`` is what is durable."""
        facts = sum(entry.facts for entry in entries)
        blobs = {key: data for entry in entries for key, data in entry.blobs.items()}
        record = joined(entry.record for entry in entries) if facts else b""
        if record:
            self.stored.records.append(record)
        try:
            self._journal.append(record, blobs)
        except BaseException:
            if record:
                self.stored.records.pop()
            raise
        self.fresh_facts += facts
        self.fresh_bytes += len(record)
        self.fresh_blob_bytes += sum(map(len, blobs.values()))

    def _mark(self) -> Stored:
        stored = self._copy()
        self.fresh_facts = self.fresh_bytes = self.fresh_blob_bytes = 0
        return stored

    def _copy(self) -> Stored:
        self._insist_it_works()
        return self.stored.copy()

    def _insist_it_works(self) -> None:
        if self._broken is not None:
            raise type(self._broken)(str(self._broken))

    def _compact(
        self,
        parts: Sequence[bytes],
        upto: int,
        keep: Container[str],
        keep_after: int | None,
    ) -> None:
        self._insist_it_works()
        self._journal.compact(parts, upto, keep, keep_after)
        self.stored.compact(parts, upto)

    def _resume(self) -> None:
        self._journal.append(b"", {})
        self._broken = None

    def _tell(
        self,
        futures: Sequence[asyncio.Future[Any]],
        value: Any,
        error: JournalError | NotStorableError | None,
    ) -> None:
        self._loop.call_soon_threadsafe(_resolve, futures, value, error)


def after_refusal(error: NotStorableError) -> JournalError:
    """The error of a change that was decided after another one whose content the store refused."""
    return JournalError(f"what was decided after a change that cannot be stored is undone: {error}")


def _resolve(
    futures: Sequence[asyncio.Future[Any]],
    value: Any,
    error: JournalError | NotStorableError | None,
) -> None:
    for done in futures:
        if done.done():
            continue
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
