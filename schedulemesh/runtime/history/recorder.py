"""The history of a running supervisor: written by a thread behind the durable steps, and read in others.

Whatever needs SQLAlchemy is imported in threads, some time after the start: a supervisor that was restarted
answers first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from schedulemesh.config.settings import HistorySettings
from schedulemesh.errors import JournalError
from schedulemesh.runtime.history.wait_reasons import WaitReasons
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.address import JournalAddress
from schedulemesh.store.disk import reason_of
from schedulemesh.store.journal import Journal

if TYPE_CHECKING:
    from schedulemesh.store.history.queries import History
    from schedulemesh.store.history.recorder import Recorder

Value = TypeVar("Value")

#: Seconds after the start in which nothing is written, unless somebody asks for the history; as many again,
#: so often at most, while a long read is being answered.
_BEGIN_S, _MOST_PAUSES = 1.0, 10
#: Seconds between two rounds of asking why tasks wait.
_REASONS_S = 1.0
#: Seconds that a query waits for a history that is being opened.
_OPENING_S = 2.0


class HistoryRecorder:
    """Writes and reads the history. All of it but ``_pulse_soon`` runs on one event loop."""

    def __init__(self, place: JournalAddress, reactor: Reactor, settings: HistorySettings) -> None:
        self.place = place
        self._reactor, self._settings = reactor, settings
        self._loop = asyncio.get_running_loop()
        self._written = asyncio.Event()
        #: Set where somebody asks for what it contains.
        self._asked_for = asyncio.Event()
        #: What writes; None: it has not begun.
        self._recorder: Recorder | None = None
        #: Begins to write, and then asks why tasks wait, once it has started.
        self._asking: asyncio.Task[None] | None = None

    def start(self, loops: Loops) -> None:
        """Begin to write after a while, first what earlier processes did not write."""
        self._asking = asyncio.ensure_future(self._write_and_ask(loops))

    def begin_at_once(self) -> None:
        """Begin to write now where that is still to come."""
        self._asked_for.set()

    async def _write_and_ask(self, loops: Loops) -> None:
        await self._pause()
        recorder = await in_thread(self._new_recorder)
        recorder.listen(self._pulse_soon)
        recorder.start()
        self._recorder = recorder
        reasons = WaitReasons(self._reactor, recorder.note_wait)
        await loops.run("wait_reasons", _REASONS_S, reasons.round)

    async def _pause(self) -> None:
        for _ in range(_MOST_PAUSES):
            await within(self._asked_for.wait(), _BEGIN_S)
            if self._asked_for.is_set() or not self._reactor.turns.are_taken:
                return

    def _new_recorder(self) -> Recorder:
        from schedulemesh.store.history.recorder import Recorder  # noqa: PLC0415  # see the module

        reactor = self._reactor
        return Recorder(
            self.place,
            self._settings,
            lambda: reactor.last,
            rolled_back=reactor.rolled_back,
            now=reactor.now,
        )

    @property
    def upto(self) -> int:
        """The last commit that it contains; -1: that is not known yet."""
        return -1 if self._recorder is None else self._recorder.upto

    def keep_after(self) -> int | None:
        """See CommitFollower."""
        return 0 if self._recorder is None else self._recorder.keep_after()

    async def read(self, query: Callable[[History], Value]) -> Value:
        """The result of a query, which runs in a thread. Raises JournalError where that fails."""
        return await in_thread(functools.partial(self._read, query))

    @property
    def opened(self) -> bool:
        """Whether it can be read; until then its own log says what is in the way."""
        return self.upto >= 0

    def written(self) -> asyncio.Event:
        """The event that is set after the next write."""
        return self._written

    async def caught_up(self, patience_s: float) -> int:
        """Return once the history contains all that is durable now, or after so many seconds; one that is
        being opened has a few seconds at least. Returns how many commits it lacks.
        """
        self.begin_at_once()
        if not self.opened:
            patience_s = max(patience_s, _OPENING_S)
        last_commit, until = self._reactor.last, time.monotonic() + patience_s
        while True:
            written = self._written
            lacks = max(0, last_commit - self.upto)
            left_s = until - time.monotonic()
            if not lacks or left_s <= 0.0 or self._trouble:
                return lacks
            await within(written.wait(), left_s)

    async def close(self, *, destroy: bool) -> None:
        """See CommitFollower."""
        if self._asking is not None:
            self._asking.cancel()
        if self._recorder is not None or destroy:
            await in_thread(functools.partial(self._close, destroy=destroy))

    def _close(self, *, destroy: bool) -> None:
        recorder = self._recorder or self._new_recorder()
        recorder.close(destroy=destroy)

    @property
    def _trouble(self) -> str:
        """Why it cannot be written; empty: it can."""
        return "" if self._recorder is None else self._recorder.trouble

    def _read(self, query: Callable[[History], Value]) -> Value:
        if not self.opened:
            raise JournalError(self._trouble or "it is being opened")

        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415  # see the module

        from schedulemesh.store.history.queries import History  # noqa: PLC0415
        from schedulemesh.store.history.tables import history_engine  # noqa: PLC0415
        from schedulemesh.store.server import with_snapshots  # noqa: PLC0415

        place = self.place
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
    history = HistoryRecorder(place, reactor, settings)
    reactor.keep_commits_for(history)
    return history
