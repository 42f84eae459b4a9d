"""Sends the attempts of tasks that have ended as traces, from the events of the history."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from schedulemesh.runtime.history.recorder import HistoryRecorder
from schedulemesh.runtime.services.running import RunningSupervisor
from schedulemesh.runtime.threads import in_thread
from schedulemesh.runtime.traces.spans import AttemptSpan, Reception, spans_of

if TYPE_CHECKING:
    from schedulemesh.store.history.queries import History

logger = logging.getLogger(__name__)

#: Seconds between two rounds, and the first and longest wait after a collector that took nothing.
TRACES_S, _LONGEST_S = 5.0, 300.0
#: The journal's note: the last event whose attempt was sent.
_NOTE = "traces"
#: Events that end an attempt; those that are read at a time.
_ENDS = ("completed", "failed", "cancelled", "lost", "preempted", "returned")
_EVENTS = 200


class SpanCollector(Protocol):
    """Takes spans."""

    def send(self, spans: list[AttemptSpan]) -> Reception:
        """Send spans; returns what became of them. Blocks."""


class TraceService:
    """Sends traces. How far is noted once it was sent: a supervisor that is restarted misses no attempt, and
    may send the last ones again, with the same ids.
    """

    def __init__(
        self, running: RunningSupervisor, history: HistoryRecorder, collector: SpanCollector
    ) -> None:
        self._journal, self._now = running.alerts.journal, running.reactor.now
        self._scheduler = f"{running.settings.namespace}/{running.settings.name}"
        self._history, self._collector = history, collector
        #: None: not read from the journal yet.
        self._cursor: int | None = None
        #: After a failure: when to try again, and the wait after the next one.
        self._not_before, self._wait_s = 0.0, TRACES_S

    async def round(self) -> None:
        """Send the attempts that have ended since the last round. Raises JournalError."""
        if not self._history.opened or self._now() < self._not_before:
            return
        if self._cursor is None:
            self._cursor = await self._first()
        while True:
            query = functools.partial(_ends_after, self._cursor)
            events = await self._history.read(query)
            if not events or not await self._send(events) or len(events) < _EVENTS:
                return

    async def _send(self, events: list[tuple[int, dict[str, object]]]) -> bool:
        """Send these attempts; returns whether to go on. One that a collector refuses is left out."""
        spans = [span for _, attempt in events for span in spans_of(attempt, self._scheduler)]
        reception = await in_thread(functools.partial(self._collector.send, spans))
        if reception is Reception.MISSED:
            self._wait()
            return False
        if reception is Reception.REFUSED and len(events) > 1:
            half = len(events) // 2
            return await self._send(events[:half]) and await self._send(events[half:])
        number, attempt = events[-1]
        if reception is Reception.REFUSED:
            logger.warning(
                "the collector refuses the trace of an attempt of %s", attempt["task_id"]
            )
        self._cursor, self._wait_s = number, TRACES_S
        await self._note(number)
        return True

    def _wait(self) -> None:
        """Try again later, after longer and longer times."""
        logger.warning("the collector took no traces; they are sent again in %.0f s", self._wait_s)
        self._not_before = self._now() + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_S)

    async def _first(self) -> int:
        """Where an earlier process stopped; where traces are new, the newest event."""
        data = await in_thread(functools.partial(self._journal.note, _NOTE))
        _, newest = await self._history.read(lambda history: history.event_span())
        noted = newest if data is None else msgspec.msgpack.decode(data, type=int)
        # A damaged history was set aside, and another one counts from 1.
        cursor = min(noted, newest)
        await self._note(cursor)
        return cursor

    async def _note(self, cursor: int) -> None:
        data = msgspec.msgpack.encode(cursor)
        await in_thread(functools.partial(self._journal.put_note, _NOTE, data))


def _ends_after(cursor: int, history: History) -> list[tuple[int, dict[str, object]]]:
    events = history.task_events(cursor, _EVENTS, _ENDS)
    return [(number, attempt) for number, _, _, attempt in events]


def traces_of(running: RunningSupervisor) -> TraceService | None:
    """What sends traces; None: that is off, or cannot be done here, which is logged."""
    settings = running.settings
    if settings.history.traces is None:
        return None
    if running.history is None:
        logger.warning("no traces are sent: they are made from the history, which is off")
        return None
    try:
        # OpenTelemetry is loaded only where traces are sent.
        from schedulemesh.runtime.traces.collector import Collector  # noqa: PLC0415
    except ModuleNotFoundError as error:
        logger.warning(
            "no traces are sent: %s. Install it where the supervisor runs: "
            "pip install 'schedulemesh[otel]'",
            error,
        )
        return None
    collector = Collector(settings.history.traces, settings.name, settings.namespace)
    return TraceService(running, running.history, collector)
