"""Tells receivers of alerts what happens to tasks, from the events of the history."""

from __future__ import annotations

import asyncio
import functools
import logging

import msgspec

from schedulemesh.config.notices import NOTICE_EVENTS
from schedulemesh.runtime.alerts.notices import notice_of, receivers_of
from schedulemesh.runtime.history.recorder import HistoryRecorder
from schedulemesh.runtime.services.running import RunningSupervisor
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.history.queries import History

logger = logging.getLogger(__name__)

#: The journal's note: the last event of which all receivers were told.
_NOTE = "notices"
#: Seconds between two rounds.
NOTICES_S = 1.0
#: Events that are read at a time.
_EVENTS = 200


class NoticeService:
    """Sends notices. The events are read in their order, and how far is noted once all were delivered: a
    supervisor that is restarted misses none, and may repeat some, with the same id.
    """

    def __init__(self, running: RunningSupervisor, history: HistoryRecorder) -> None:
        self._alerts, self._routes = running.alerts, running.settings.alerts.notices
        self._history, self._journal = history, running.alerts.journal
        #: Where nothing was told before, it begins here.
        self._began, self._since = running.reactor.now(), 0.0
        #: The last event that was read; None: not known yet.
        self._cursor: int | None = None
        #: The event of the history that is set by the first write after those that were read.
        self._read_until: asyncio.Event | None = None
        #: The cursor that the journal has.
        self._noted = -1

    async def round(self) -> None:
        """Send notices of the events since the last round. Raises JournalError."""
        if not self._history.opened:
            return
        if self._cursor is None:
            self._cursor = await self._first()
        # Taken before the look, so that no write between the two is missed.
        written = self._history.written()
        if written is not self._read_until:
            self._cursor = await self._sent(self._cursor)
            self._read_until = written
        if self._cursor != self._noted and not self._alerts.notices_wait():
            await self._note(self._cursor)

    async def _sent(self, after: int) -> int:
        """Send notices of the events after one; returns the last that was read."""
        names = self._alerts.receivers
        while True:
            events, newest = await self._history.read(functools.partial(_events_after, after))
            for cursor, at, kind, attempt in events:
                receivers = receivers_of(kind, attempt, self._routes, names)
                if receivers and attempt["task_id"] and at >= self._since:
                    self._alerts.send(receivers, notice_of(cursor, at, kind, attempt))
                after = cursor
            if len(events) < _EVENTS:
                # The others up to the newest are of kinds that need not be read again.
                return max(newest, after)

    async def _first(self) -> int:
        """Where an earlier process stopped, or the newest event before this one began."""
        data = await in_thread(functools.partial(self._journal.note, _NOTE))
        if data is None:
            # What the history does not have yet of that time is left out by its time.
            self._since = self._began
            read = functools.partial(_newest_before, self._began)
            await self._note(cursor := await self._history.read(read))
            return cursor
        _, newest = await self._history.read(lambda history: history.event_span())
        self._noted = msgspec.msgpack.decode(data, type=int)
        # A history that began again counts from 1.
        return min(self._noted, newest)

    async def _note(self, cursor: int) -> None:
        data = msgspec.msgpack.encode(cursor)
        await in_thread(functools.partial(self._journal.put_note, _NOTE, data))
        self._noted = cursor


def _events_after(
    cursor: int, history: History
) -> tuple[list[tuple[int, float, str, dict[str, object]]], int]:
    """Events that notices may be about, and the newest event of any kind, from one look."""
    _, newest = history.event_span()
    return history.task_events(cursor, _EVENTS, NOTICE_EVENTS), newest


def _newest_before(at: float, history: History) -> int:
    return history.newest_before(at)


def notices_of(running: RunningSupervisor) -> NoticeService | None:
    """What sends notices; None: nobody is to receive any, or there is no history to read."""
    if not running.alerts.receivers:
        return None
    if running.history is None:
        if running.settings.alerts.notices:
            logger.warning(
                "no notices about tasks are sent: they are made from the history, which is off"
            )
        return None
    return NoticeService(running, running.history)
