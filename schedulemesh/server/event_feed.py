"""The events of the history for all streams: one reader asks the supervisor, however many clients there are.

It keeps the last events, already encoded. A stream has no buffer of its own, only its cursor: it takes what
follows from the kept events, and where it is further back, from a page that the supervisor is asked for.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from schedulemesh.api.history import QueryEvents
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import Details, Refusal
from schedulemesh.server.gateway import SupervisorClient

logger = logging.getLogger(__name__)

#: Events that are kept for all streams; each takes about 500 bytes.
KEPT = 20_000
#: The most events of one answer of the supervisor.
PAGE = 500
#: Seconds that one request waits for an event.
WAIT_S = 20.0
#: Seconds between two requests: a busy supervisor is asked no more often, and answers several events at once.
PAUSE_S = 0.2
#: Seconds between two attempts while the supervisor or its history is not available.
RETRY_S = 0.5
#: Pages of streams that are further back, read at the same time.
_PAGES = 2


class EventLine(NamedTuple):
    """One event, encoded for all streams."""

    cursor: int
    kind: str
    task_id: str
    #: The pool of its task, or what it is about itself.
    pool_name: str
    data: bytes


class Trouble(NamedTuple):
    """Why there are no events for now."""

    reason: str
    error: str


class Gap(NamedTuple):
    """Events after a cursor are not in the history."""

    after: int
    #: ``removed``: they are older than what it keeps; ``began_again``: it is another one than that in which
    #: the cursor was.
    reason: str
    #: Where it continues.
    cursor: int


class EventPage(NamedTuple):
    """Events that were asked for."""

    lines: Sequence[EventLine]
    #: What comes after is not in ``lines``.
    cursor: int
    gap: Gap | None


class EventFeed:
    """Follows the history while there are streams. All of it runs on one event loop."""

    def __init__(self, gateway: SupervisorClient) -> None:
        self._gateway = gateway
        #: The last events, without a gap between them.
        self._lines: list[EventLine] = []
        #: The cursor before the first of them, and that of the last one; None: not known yet.
        self._begin: int | None = None
        self.cursor: int | None = None
        #: Why there are no events for now; None: there are.
        self.trouble: Trouble | None = None
        #: How often the history was found to have begun again.
        self.restarts = 0
        #: How many streams there are.
        self.streams = 0
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._pages = asyncio.Semaphore(_PAGES)

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Within, there is one stream more; the reader runs while there is one."""
        self.streams += 1
        if not self.reading:
            self._reader = asyncio.ensure_future(self._keep_reading())
            self._reader.add_done_callback(self._read_ended)
        try:
            yield
        finally:
            self.streams -= 1
            if not self.streams:
                self._stop()

    @property
    def reading(self) -> bool:
        """Whether the reader runs; where it does not, streams end, and clients come back."""
        return self._reader is not None and not self._reader.done()

    def end(self) -> None:
        """Have all streams end: the server ends."""
        self._stop()
        self._pulse()

    def changed(self) -> asyncio.Event:
        """The event that is set when there is something new. Take it before looking."""
        return self._changed

    def after(self, cursor: int, limit: int) -> Sequence[EventLine] | None:
        """The next events after a cursor, of those that are kept; None: they begin after it."""
        if self._begin is None or self.cursor is None or not self._begin <= cursor <= self.cursor:
            return None
        first = bisect.bisect_right(self._lines, cursor, key=_cursor)
        return self._lines[first : first + limit]

    async def page(self, cursor: int) -> EventPage | None:
        """The next events after a cursor, from the supervisor; None: not now, see ``trouble``."""
        async with self._pages:
            facts = await self._ask(QueryEvents(after=cursor, limit=PAGE))
        return None if facts is None else _page(cursor, facts)

    # -- the reader ---------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Read no more, and forget the events, because later ones may be far ahead."""
        if self._reader is not None:
            self._reader.cancel()
        self._reader, self.trouble = None, None
        self._lines, self._begin, self.cursor = [], None, None

    def _read_ended(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None:
            logger.error("the events cannot be followed; streams end", exc_info=error)
            self._pulse()

    async def _keep_reading(self) -> None:
        """Ask for the next events again and again."""
        while True:
            # Where it begins is answered at once, and so is whether the supervisor is back; other requests
            # wait for an event.
            at_once = self.cursor is None or self.trouble is not None
            wait_s = 0.0 if at_once else WAIT_S
            facts = await self._ask(QueryEvents(after=self.cursor, limit=PAGE, wait_s=wait_s))
            if facts is None:
                await asyncio.sleep(RETRY_S)
                continue
            self._take(facts)
            if len(facts["events"]) < PAGE:
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, request: QueryEvents) -> Mapping[str, Any] | None:
        """The answer; None: the supervisor or its history is not available."""
        try:
            answer = await self._gateway.ask(request)
        except SchedulerUnavailableError as error:
            self._note(Trouble("scheduler_unavailable", str(error)))
            return None
        if isinstance(answer, Refusal):
            refused = answer.refused
            self._note(Trouble(refused.reason.value, refused.error))
            return None
        if not isinstance(answer, Details):
            raise TypeError(f"the supervisor answered with {type(answer).__name__}")
        self._note(None)
        return answer.facts

    def _note(self, trouble: Trouble | None) -> None:
        if trouble is not None and self.trouble is None:
            logger.info("streams wait: %s", trouble.error)
        if trouble != self.trouble:
            self.trouble = trouble
            self._pulse()

    def _take(self, facts: Mapping[str, Any]) -> None:
        """Keep the events of an answer."""
        before = self.cursor
        page = _page(before or 0, facts)
        if before is None or page.gap is not None:
            # What was kept does not continue in what comes.
            self._lines = []
            self._begin = page.cursor if page.gap is None else page.gap.cursor
            self.restarts += page.gap is not None and page.gap.reason == "began_again"
        self._lines += page.lines
        self.cursor = page.cursor
        if len(self._lines) > KEPT + KEPT // 4:
            self._begin = self._lines[-KEPT - 1].cursor
            self._lines = self._lines[-KEPT:]
        if page.cursor != before:
            self._pulse()

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _page(after: int, facts: Mapping[str, Any]) -> EventPage:
    lines = [_line(row) for row in facts["events"]]
    reason = facts["gap"]
    begin = lines[0].cursor - 1 if lines else facts["cursor"]
    gap = None if reason is None else Gap(after=after, reason=reason, cursor=begin)
    return EventPage(lines, facts["cursor"], gap)


def _line(row: Mapping[str, Any]) -> EventLine:
    cursor: int = row["cursor"]
    return EventLine(
        cursor=cursor,
        kind=row["kind"],
        task_id=row["task_id"],
        pool_name=row["pool_name"] or row["subject"],
        data=b"id: %d\ndata: %b\n\n" % (cursor, msgspec.json.encode(row)),
    )


def _cursor(line: EventLine) -> int:
    return line.cursor
