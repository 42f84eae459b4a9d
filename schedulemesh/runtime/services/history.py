"""Requests about the history."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from schedulemesh.api.history import QueryEvents, QueryHistory, QueryUsage
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Text, say
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import JournalError
from schedulemesh.protocol.answers import Details, Refusal, details
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.history.recorder import within
from schedulemesh.runtime.services.running import RunningSupervisor
from schedulemesh.store.history.filters import Filters, Span, whole_hours
from schedulemesh.store.history.usage import Dimension

if TYPE_CHECKING:
    from schedulemesh.store.history.queries import History

#: Seconds that a request waits until the history contains what was durable when it came.
_PATIENCE_S = 2.0


class HistoryService:
    """Lists attempts and events, and sums up what was used."""

    def __init__(self, running: RunningSupervisor) -> None:
        self._history = running.history
        self._reactor = running.reactor

    @handler
    async def attempts(self, request: QueryHistory) -> Details | Refusal:
        """The attempts that match, the newest first."""
        filters = Filters(
            task_id=request.task_id,
            pool_names=self._names_of(request.pool_name),
            owner=request.owner,
            agent_name=request.agent_name,
            state=request.state,
            labels=request.labels,
            since=request.since,
            until=request.until,
        )

        def look(history: History) -> dict[str, object]:
            # One more than is answered shows whether there are further ones.
            span = Span(before=request.before, after=request.after)
            rows = history.attempts(filters, request.limit + 1, span)
            more = len(rows) > request.limit
            rows = rows[: request.limit]
            if request.with_events:
                events = history.events_of([row["cursor"] for row in rows])
                rows = [row | {"events": events[row["cursor"]]} for row in rows]
            return {"attempts": rows, "more": more}

        return await self._answer(look, 0.0 if request.at_once else _PATIENCE_S)

    @handler
    async def usage(self, request: QueryUsage) -> Details | Refusal:
        """What was used, by pool, owner or label."""
        now = self._reactor.now()
        until = now if request.until is None else request.until
        since, until = whole_hours(request.since, max(until, request.since))
        by = Dimension[request.by.upper()]

        def look(history: History) -> dict[str, object]:
            rows = history.usage(by, since, until, request.label)
            return {"usage": rows, "since": since, "until": min(until, now)}

        return await self._answer(look, 0.0 if request.at_once else _PATIENCE_S)

    @handler
    async def events(self, request: QueryEvents) -> Details | Refusal:
        """The events after one, waiting for the next where there is none."""
        until = time.monotonic() + request.wait_s
        # Whoever waits for the next event follows: what is not written yet comes soon.
        patience_s = 0.0 if request.wait_s else _PATIENCE_S
        while True:
            # Taken before the look, so that no write between the two is missed.
            written = None if self._history is None else self._history.written()
            look = functools.partial(_events, request, self._names_of(request.pool_name))
            answer = await self._answer(look, patience_s)
            if isinstance(answer, Refusal) or written is None:
                return answer
            facts, left_s = answer.facts, until - time.monotonic()
            if facts["events"] or facts["gap"] or left_s <= 0.0:
                return answer
            request = msgspec.structs.replace(request, after=facts["cursor"])
            await within(written.wait(), left_s)

    def _names_of(self, pool_name: str | None) -> tuple[str, ...] | None:
        """All names that a pool has had; None: no pool is named."""
        if pool_name is None:
            return None
        return self._reactor.state.pool_names.all_of(pool_name)

    async def _answer(
        self, look: Callable[[History], dict[str, object]], patience_s: float
    ) -> Details | Refusal:
        """The answer of a query, with how many commits of the journal the history does not contain yet."""
        history = self._history
        if history is None:
            return _unavailable(say("history_is_off"))
        behind = await history.caught_up(patience_s)
        try:
            return details(await history.read(look) | {"behind": behind})
        except JournalError as error:
            return _unavailable(str(error))


def _events(
    request: QueryEvents, pool_names: tuple[str, ...] | None, history: History
) -> dict[str, object]:
    """The events after one, where to continue, and whether there is a gap before them."""
    oldest, newest = history.event_span()
    after = newest if request.after is None else request.after
    gap = None
    if after > newest:
        # The cursor is one of a history that exists no more.
        gap, after = "began_again", 0
    elif 0 < after < oldest - 1:
        gap = "removed"
    rows = history.events(after, request.limit, request.task_id, request.kinds, pool_names)
    last = rows[-1]["cursor"] if rows else 0
    # Where all events were looked at, what did not match need not be looked at again. Events that are newer
    # than ``newest`` may be in ``rows`` where both were not read in one transaction.
    cursor = max(newest, last) if len(rows) < request.limit else last
    return {"events": rows, "cursor": cursor, "gap": gap}


def _unavailable(why: Text) -> Refusal:
    error = say("history_unreadable", why=why)
    return Refusal(refused=Refused(reason=Reason.HISTORY_UNAVAILABLE, error_text=error))
