"""Tells receivers of alerts what happens to tasks, from the events of the history."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

import msgspec

from schedulemesh.config.notices import NOTICE_EVENTS
from schedulemesh.runtime.alerts.notices import is_for, notice_of
from schedulemesh.runtime.history.recorder import HistoryRecorder
from schedulemesh.runtime.services.running import RunningSupervisor
from schedulemesh.runtime.threads import in_thread

if TYPE_CHECKING:
    from schedulemesh.store.history.queries import History

logger = logging.getLogger(__name__)

#: The journal's note: by receiver, the last event of which it was told.
_NOTE = "notices"
#: Seconds between two rounds.
NOTICES_S = 1.0
#: Events that nobody is told of, after which it is noted all the same how far they were read.
_UNNOTED = 1000
#: Events that are read at a time, and notices that wait for a receiver while no more are read for it.
_EVENTS, _WAITING = 200, 200


class NoticeService:
    """Sends notices. Each receiver is told of the events in their order, and how far is noted: a supervisor
    that is restarted misses none, and may repeat what was just being delivered, with the same id.
    """

    def __init__(self, running: RunningSupervisor, history: HistoryRecorder) -> None:
        self._alerts, self._routes = running.alerts, running.settings.alerts.notices
        self._history, self._journal = history, running.alerts.journal
        #: Of nothing is told that happened before: seconds since 1970.
        self._since = 0.0
        #: Where nothing was told before, it begins here.
        self._reactor = running.reactor
        self._began = running.reactor.now()
        #: The time of the last event that was read.
        self._read_at = 0.0
        #: By receiver, the last event that was read for it; empty: not known yet.
        self._cursors: dict[str, int] = {}
        #: Whether notices were sent since that was noted.
        self._sent = False
        #: The same as the journal has it.
        self._noted: dict[str, int] = {}
        #: The event of the history that is set by the first write after those that were read.
        self._read_until: asyncio.Event | None = None

    async def round(self) -> None:
        """Send notices of the events since the last round. Raises JournalError."""
        if not self._history.opened:
            return
        if not self._cursors:
            self._cursors = await self._first()
        # Taken before the look, so that no write between the two is missed.
        written = self._history.written()
        if written is not self._read_until:
            all_read = [await self._send_to(name) for name in self._cursors]
            self._read_until = written if all(all_read) else None
        delivered = {
            name: self._alerts.delivered_notices(name, cursor)
            for name, cursor in self._cursors.items()
        }
        passed = max(cursor - self._noted.get(name, 0) for name, cursor in delivered.items())
        if delivered != self._noted and (self._sent or passed > _UNNOTED):
            await self._note(delivered)
            self._sent = delivered != self._cursors

    async def _send_to(self, receiver: str) -> bool:
        """Send a receiver its notices; returns whether all events were read, as far as it takes them."""
        while self._alerts.notices_waiting(receiver) < _WAITING:
            after = self._cursors[receiver]
            events, newest = await self._history.read(functools.partial(_events_after, after))
            if newest < after:
                # A damaged history was set aside, and another one counts from 1.
                self._cursors[receiver], self._since = 0, self._read_at
                continue
            for cursor, at, kind, attempt in events:
                is_task = attempt["task_id"] and at >= self._since
                names = self._reactor.state.pool_names
                if is_task and is_for(receiver, self._routes, kind, attempt, names):
                    place = self._place_of(attempt["task_id"]) if kind == "preempted" else None
                    self._alerts.send(receiver, notice_of(cursor, at, kind, attempt, place))
                    self._sent = True
                self._cursors[receiver], self._read_at = cursor, at
            if len(events) < _EVENTS:
                # The others up to the newest are of kinds that need not be read again.
                self._cursors[receiver] = max(newest, self._cursors[receiver])
                return True
        return False

    def _place_of(self, task_id: object) -> tuple[int, int] | None:
        """Where a task waits, and among how many of its pool; None: it does not."""
        queue = self._reactor.state.queue
        waiting = queue.by_id.get(str(task_id))
        if waiting is None:
            return None
        return queue.position(waiting), queue.size(waiting.pool_name)

    async def _first(self) -> dict[str, int]:
        """Where an earlier process stopped; of a new receiver the newest event before this one began."""
        data = await in_thread(functools.partial(self._journal.note, _NOTE))
        noted = {} if data is None else msgspec.msgpack.decode(data, type=dict[str, int])
        _, newest = await self._history.read(lambda history: history.event_span())
        if data is None or any(cursor > newest for cursor in noted.values()):
            # What the history does not have yet of the time before is left out by its time.
            self._since, noted = self._began, {}
        before = await self._history.read(functools.partial(_newest_before, self._began))
        cursors = {name: noted.get(name, before) for name in self._alerts.receivers}
        await self._note(cursors)
        return dict(cursors)

    async def _note(self, cursors: dict[str, int]) -> None:
        data = msgspec.msgpack.encode(cursors)
        await in_thread(functools.partial(self._journal.put_note, _NOTE, data))
        self._noted = cursors


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
