"""The history of a running supervisor: written by a thread behind the durable steps, and read in others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from schedulemesh.config.settings import HistorySettings
from schedulemesh.errors import JournalError
from schedulemesh.runtime.history.wait_reasons import WaitReasons
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.disk import reason_of
from schedulemesh.store.history.queries import History
from schedulemesh.store.history.recorder import Recorder
from schedulemesh.store.history.tables import history_engine
from schedulemesh.store.journal import Journal
from schedulemesh.store.server import with_snapshots

Value = TypeVar("Value")

#: Seconds between two rounds of asking why tasks wait.
_REASONS_S = 1.0
#: Seconds that a query waits for a history that is being opened.
_OPENING_S = 2.0


class HistoryRecorder:
    """Writes and reads the history. All of it but ``_pulse_soon`` runs on one event loop."""

    def __init__(self, recorder: Recorder, reactor: Reactor) -> None:
        self._recorder, self._reactor = recorder, reactor
        self._loop = asyncio.get_running_loop()
        self._written = asyncio.Event()
        #: Asks why tasks wait, once it has started.
        self._asking: asyncio.Task[None] | None = None
        recorder.listen(self._pulse_soon)

    def start(self, loops: Loops) -> None:
        """Begin to write, first what earlier processes did not write."""
        self._recorder.start()
        reasons = WaitReasons(self._reactor, self._recorder.note_wait)
        self._asking = asyncio.ensure_future(loops.run("wait_reasons", _REASONS_S, reasons.round))

    def keep_after(self) -> int | None:
        """See CommitFollower."""
        return self._recorder.keep_after()

    async def read(self, query: Callable[[History], Value]) -> Value:
        """The result of a query, which runs in a thread. Raises JournalError where that fails."""
        return await in_thread(functools.partial(self._read, query))

    @property
    def opened(self) -> bool:
        """Whether it can be read; until then its own log says what is in the way."""
        return self._recorder.upto >= 0

    def written(self) -> asyncio.Event:
        """The event that is set after the next write."""
        return self._written

    async def caught_up(self, patience_s: float) -> int:
        """Return once the history contains all that is durable now, or after so many seconds; one that is
        being opened has a few seconds at least. Returns how many commits it lacks.
        """
        if not self.opened:
            patience_s = max(patience_s, _OPENING_S)
        last_commit, until = self._reactor.last, time.monotonic() + patience_s
        while True:
            written = self._written
            lacks = max(0, last_commit - self._recorder.upto)
            left_s = until - time.monotonic()
            if not lacks or left_s <= 0.0 or self._recorder.trouble:
                return lacks
            await within(written.wait(), left_s)

    async def close(self, *, destroy: bool) -> None:
        """See CommitFollower."""
        if self._asking is not None:
            self._asking.cancel()
        await in_thread(functools.partial(self._recorder.close, destroy=destroy))

    def _read(self, query: Callable[[History], Value]) -> Value:
        place = self._recorder.place
        if not self.opened:
            raise JournalError(self._recorder.trouble or "it is being opened")
        try:
            engine = with_snapshots(history_engine(place.address), place.address)
            with engine.connect() as connection, connection.begin():
                return query(History(connection, place.journal, self._reactor.now()))
        except (SQLAlchemyError, OSError, sqlite3.Error) as error:
            raise JournalError(reason_of(getattr(error, "orig", None) or error)) from error

    def _pulse_soon(self) -> None:
        """Called in the thread after a write."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pulse)

    def _pulse(self) -> None:
        self._written.set()
        self._written = asyncio.Event()


async def within(work: Awaitable[object], seconds: float) -> None:
    """Return when the work is done, or after so many seconds."""
    with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
        await asyncio.wait_for(work, seconds)


def history_of(
    journal: Journal, reactor: Reactor, settings: HistorySettings
) -> HistoryRecorder | None:
    """The history of a journal, not started yet; None: it is switched off, or the journal is in memory."""
    place = journal.place()
    if place is None or not settings.enabled:
        return None
    recorder = Recorder(
        place, settings, lambda: reactor.last, rolled_back=reactor.rolled_back, now=reactor.now
    )
    history = HistoryRecorder(recorder, reactor)
    reactor.keep_commits_for(history)
    return history
