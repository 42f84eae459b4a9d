"""Follows events over both ways to a scheduler, and resumes at its cursor where the connection was lost."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from schedulemesh.cli.exits import RefusedError
from schedulemesh.cli.language import phrase
from schedulemesh.domain.reasons import Reason
from schedulemesh.errors import SchedulerUnavailableError

if TYPE_CHECKING:
    from schedulemesh.api.history import QueryEvents

#: Seconds that one request over Ray waits for an event.
_WAIT_S = 20.0
#: Seconds between two attempts to connect, and after which no more are made.
_RETRY_S, _GIVE_UP_S = 0.5, 60.0
#: Bytes that are read from a stream at once.
_READ = 65_536

Facts = dict[str, Any]


class Part(NamedTuple):
    """What a stream brings at one time."""

    rows: list[Facts]
    #: A remark, for example that events are missing; empty: none.
    note: str = ""


#: Nothing has happened for some seconds.
HEARTBEAT = Part([])


class _Patience:
    """Waits between attempts to reach the scheduler, and says once that it is away."""

    def __init__(self) -> None:
        self._away_since: float | None = None

    def reached(self) -> None:
        """The scheduler has answered."""
        self._away_since = None

    def failed(self, error: Exception) -> str:
        """Wait before the next attempt; returns a remark before the second one. Raises the error where it has
        lasted too long.
        """
        now = time.monotonic()
        first = self._away_since is None
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since > _GIVE_UP_S:
            raise error
        time.sleep(_RETRY_S)
        return phrase("remark_awaited", error=str(error)) if first else ""


def by_requests(ask: Callable[[QueryEvents], Facts], query: QueryEvents) -> Iterator[Part]:
    """The events after ``query.after``, as they happen, by requests that wait for them."""
    patience, after = _Patience(), query.after
    while True:
        request = msgspec.structs.replace(query, after=after, wait_s=_WAIT_S)
        try:
            facts = ask(request)
        except (SchedulerUnavailableError, RefusedError) as error:
            if isinstance(error, RefusedError) and error.reason is not Reason.HISTORY_UNAVAILABLE:
                raise
            if note := patience.failed(error):
                yield Part([], note)
            continue
        patience.reached()
        note = gap_note(after, facts["gap"])
        after = facts["cursor"]
        yield Part(facts["events"], note)


def by_stream(
    connect: Callable[[QueryEvents], AbstractContextManager[http.client.HTTPResponse]],
    query: QueryEvents,
) -> Iterator[Part]:
    """The same by streams of server-sent events: a further one where the former has ended."""
    patience, reading = _Patience(), _Reading(query.after)
    while True:
        try:
            with connect(msgspec.structs.replace(query, after=reading.cursor)) as response:
                while data := response.read1(_READ):
                    patience.reached()
                    yield from reading.parts(data)
            lost = "the stream has ended"
        except (OSError, http.client.HTTPException, SchedulerUnavailableError) as error:
            lost = str(error) or type(error).__name__
        reading.cut_off()
        if note := patience.failed(SchedulerUnavailableError(f"the HTTP API: {lost}")):
            yield Part([], note)


def gap_note(after: int | None, reason: str | None) -> str:
    """The remark that events are missing; empty: none are."""
    if reason is None:
        return ""
    if reason == "removed":
        return phrase("remark_events_removed", after=str(after))
    return phrase("remark_events_anew", after=str(after))


class _Reading:
    """Takes a stream apart. ``cursor``: the position, where a further stream continues."""

    def __init__(self, cursor: int | None) -> None:
        self.cursor = cursor
        #: What has arrived of a block that is not complete.
        self._rest = b""

    def cut_off(self) -> None:
        """The stream has ended."""
        self._rest = b""

    def parts(self, data: bytes) -> Iterator[Part]:
        """What these bytes complete: events, with remarks in between; HEARTBEAT where it is neither."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        rows: list[Facts] = []
        for block in blocks:
            kind, event = self._block(block)
            if kind == "message" and event:
                rows.append(event)
            elif note := _note(kind, event):
                yield Part(rows, note)
                rows = []
        if rows or any(block.startswith(b":") for block in blocks):
            yield Part(rows)

    def _block(self, block: bytes) -> tuple[str, Facts]:
        """The type of a block, and its data."""
        kind, event = "message", {}
        for line in block.decode().split("\n"):
            name, _, value = line.partition(": ")
            if name == "id":
                self.cursor = int(value)
            elif name == "event":
                kind = value
            elif name == "data":
                event = json.loads(value)
        return kind, event


def _note(kind: str, event: Facts) -> str:
    if kind == "gap":
        return gap_note(event["after"], event["reason"])
    if kind == "paused":
        return phrase("remark_paused", error=event["error"])
    return ""
