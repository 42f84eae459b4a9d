"""Streams of events as server-sent events, each from a cursor on and without a gap."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from schedulemesh.domain.reasons import Reason
from schedulemesh.server.disconnection import wait_for_disconnect
from schedulemesh.server.event_feed import RETRY_S, EventFeed, EventLine, Gap, Trouble
from schedulemesh.server.problems import Problem

#: Seconds without an event after which a stream says that it is still open.
HEARTBEAT_S = 10.0
#: The same for streams of pages: whether the session of a page still is one is looked at as often.
PAGE_HEARTBEAT_S = 2.0
#: Streams at a time, and those with one token; each costs this process some 100 KB where its client is slow.
MAX_STREAMS, MAX_STREAMS_OF_TOKEN = 200, 50
#: The same of pages, of which many people may have one token.
MAX_PAGES, MAX_PAGES_OF_TOKEN = 400, 200
#: The most events that are written at once.
_AT_ONCE = 200
#: Milliseconds after which a client connects again.
_RECONNECT_MS = 1_000

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    # For proxies that would collect answers before they pass them on.
    (b"x-accel-buffering", b"no"),
)


class EventFilter(NamedTuple):
    """Which events a stream has; None and empty: all."""

    task_id: str | None = None
    pool_name: str | None = None
    kinds: frozenset[str] = frozenset()

    def has(self, line: EventLine) -> bool:
        """Whether it has this one."""
        return (
            (self.task_id is None or line.task_id == self.task_id)
            and (self.pool_name is None or line.pool_name == self.pool_name)
            and (not self.kinds or line.kind in self.kinds)
        )


class EventStream:
    """The answer that streams events until the client leaves, its token ends, or the server ends.

    ``after``: the cursor after which it begins; None: now. ``accepted``: whether the client's token still is.
    """

    def __init__(
        self,
        feed: EventFeed,
        event_filter: EventFilter,
        after: int | None,
        accepted: Callable[[], Awaitable[bool]],
    ) -> None:
        self._feed, self._filter, self._accepted = feed, event_filter, accepted
        #: The last event that was read, sent or not; None: it begins with the next event that comes.
        self._cursor = after
        #: The restarts of the history that the client knows of.
        self._restarts = feed.restarts
        #: What the client was told last about why there are no events; None: that there are.
        self._trouble: Trouble | None = None
        #: When a part was last sent, in seconds of the event loop.
        self._written_at = 0.0

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        with self._feed.joined():
            writing = asyncio.ensure_future(self._write(send))
            disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
            try:
                await asyncio.wait((writing, disconnected), return_when=asyncio.FIRST_COMPLETED)
            finally:
                disconnected.cancel()
                writing.cancel()
            if writing.done() and not writing.cancelled():
                writing.result()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        async for part in self._parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self._written_at = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % _RECONNECT_MS
        while self._feed.reading:
            changed = self._feed.changed()
            part = await self._next()
            if part and not await self._accepted():
                yield _named("ended", {"reason": Reason.TOKEN_NOT_ACCEPTED.value})
                return
            if part:
                yield part
            elif part is None:
                await _wait(changed, self._until_heartbeat())

    async def _next(self) -> bytes | None:
        """What comes next: bytes, empty where it has moved on without any; None: nothing for now."""
        if (trouble := self._feed.trouble) != self._trouble:
            self._trouble = trouble
            return _trouble(trouble)
        if self._restarts != self._feed.restarts:
            self._restarts = self._feed.restarts
            return self._gap(Gap(after=self._cursor or 0, reason="began_again", cursor=0))
        if self._cursor is None and self._feed.cursor is not None:
            self._cursor = self._feed.cursor
            if beginning := self._beginning(self._cursor):
                return beginning
        lines = None if self._cursor is None else self._feed.after(self._cursor, _AT_ONCE)
        if lines:
            return self._move_to(lines, lines[-1].cursor)
        if lines is None and self._cursor is not None:
            return await self._next_page(self._cursor)
        return self._heartbeat() if self._until_heartbeat() <= 0.0 else None

    def _beginning(self, _cursor: int) -> bytes:
        """What the client gets once it is known after which event its stream begins."""
        return b""

    def _message(self, lines: Sequence[EventLine], _cursor: int) -> bytes:
        """What the client gets of events that it asked for."""
        return b"".join(line.data for line in lines)

    async def _next_page(self, cursor: int) -> bytes | None:
        """What the supervisor answers after a cursor that is further back than what is kept."""
        page = await self._feed.page(cursor)
        if page is None:
            # The reader may be waiting for an event, so nothing else would wake this stream.
            await asyncio.sleep(RETRY_S)
            return b""
        gap_event = b"" if page.gap is None else self._gap(page.gap)
        return gap_event + self._move_to(page.lines, page.cursor)

    def _move_to(self, lines: Sequence[EventLine], cursor: int) -> bytes:
        self._cursor = cursor
        passing = [line for line in lines if self._filter.has(line)]
        return self._message(passing, cursor) if passing else b""

    def _gap(self, gap: Gap) -> bytes:
        self._cursor = gap.cursor
        return b"id: %d\n%b" % (gap.cursor, _named("gap", gap._asdict()))

    def _heartbeat(self) -> bytes:
        """A comment, with the position: where all events were left out, it has moved nevertheless."""
        at = b"" if self._cursor is None else b"id: %d\n" % self._cursor
        return b": heartbeat\n%b\n" % at

    def _heartbeat_s(self) -> float:
        return HEARTBEAT_S

    def _until_heartbeat(self) -> float:
        return self._written_at + self._heartbeat_s() - asyncio.get_running_loop().time()


class ChangeStream(EventStream):
    """A stream that says no more than that there were events, for pages, which read what they show anew; and
    whether the supervisor answers, which nobody would notice while there are none.

    ``answers``: whether the supervisor answers now.
    """

    def __init__(
        self,
        feed: EventFeed,
        after: int | None,
        accepted: Callable[[], Awaitable[bool]],
        answers: Callable[[], Awaitable[bool]],
    ) -> None:
        super().__init__(feed, EventFilter(), after, accepted)
        self._answers = answers
        self._is_away = False

    async def _next(self) -> bytes | None:
        if self._until_heartbeat() <= 0.0 and self._trouble is None:
            is_away = not await self._answers()
            if is_away != self._is_away:
                self._is_away = is_away
                return _trouble(_AWAY if is_away else None)
        return await super()._next()

    def _beginning(self, cursor: int) -> bytes:
        # What the page shows may be older than that.
        return self._message((), cursor)

    def _message(self, _lines: Sequence[EventLine], cursor: int) -> bytes:
        return b"id: %d\n%b" % (cursor, _named("changed", {}))

    def _heartbeat_s(self) -> float:
        return PAGE_HEARTBEAT_S


#: What pages are told while the supervisor does not answer.
_AWAY = Trouble("scheduler_unavailable", "the supervisor does not answer")


def _trouble(trouble: Trouble | None) -> bytes:
    return _named("resumed", {}) if trouble is None else _named("paused", trouble._asdict())


def _named(kind: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(data))


class OpenStreams:
    """How many streams of a kind there are, altogether and by the name of their token."""

    def __init__(self) -> None:
        self._by_token: Counter[str] = Counter()

    def check(self, token: str, most: int, most_of_token: int) -> None:
        """Raise Problem where there are too many for one more."""
        total, of_token = self._by_token.total(), self._by_token[token]
        if total >= most or of_token >= most_of_token:
            error = (
                f"there are {total} streams, {of_token} of them with token {token!r}; the most are {most}, "
                f"and {most_of_token} with one token; close some, or try again later"
            )
            raise Problem(503, "too_many_streams", error, {"retry-after": "5"})

    def counted(self, token: str, stream: EventStream) -> ASGIApp:
        """The stream, which is counted while it is open."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self._by_token[token] += 1
            try:
                await stream(scope, receive, send)
            finally:
                self._by_token[token] -= 1
                if not self._by_token[token]:
                    del self._by_token[token]

        return answer


async def _wait(changed: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(changed.wait(), max(0.0, seconds))
    except (asyncio.TimeoutError, TimeoutError):
        return
