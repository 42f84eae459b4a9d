"""The calls that read the history, which the supervisor filters and cuts into pages: it may be very long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from schedulemesh.api.call import Call
from schedulemesh.api.history import (
    GROUPINGS,
    AttemptInfo,
    HistoryEvent,
    QueryEvents,
    QueryHistory,
    QueryUsage,
    UsageInfo,
)
from schedulemesh.api.pages import MAX_LIMIT
from schedulemesh.protocol.portions import PortionTurns
from schedulemesh.server import parameters as p
from schedulemesh.server.listings import DEFAULT_LIMIT, page_of
from schedulemesh.server.parameters import QueryParameter, read_parameters

Json = dict[str, Any]

_NEWEST_FIRST, _OLDEST_FIRST = "-cursor", "cursor"
_MOST_GPUS_FIRST = "-gpu_hours,-cpu_hours"
_LIMIT = p.count("limit", "How many rows a page has.", MAX_LIMIT, least=1, default=DEFAULT_LIMIT)
_BEHIND: Json = {
    "type": "integer",
    "description": "How many commits of the journal the history does not contain yet.",
}
_NEXT: Json = {"type": ["string", "null"]}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A call that lists rows of the history."""

    path: str
    summary: str
    #: The type of a row.
    row: type
    parameters: tuple[QueryParameter, ...]
    #: Whether the answer is filtered, sorted and cut into pages as those of other listings are; its
    #: parameters are those of a listing then, beside its own.
    listed: bool = False
    #: The class of the request, which decides who may make it.
    asks: type[Call]
    request: Callable[[Mapping[str, Any]], Call]
    #: The answer, from what the supervisor answered and the whole query.
    answer: Callable[[Json, Mapping[str, Any], QueryParams, PortionTurns], Awaitable[Json]]
    #: The schemas of what the answer has beside its rows.
    beside: Mapping[str, Json]

    def read_query(self, query: QueryParams) -> Mapping[str, Any]:
        """The value of each parameter. Raises InvalidRequestError."""
        return read_parameters(self._own(query) if self.listed else query, self.parameters)

    def _own(self, query: QueryParams) -> QueryParams:
        """The parameters that a listing does not have; what neither has is left to the listing."""
        own_names = {parameter.name for parameter in self.parameters}
        return QueryParams([(key, value) for key, value in query.multi_items() if key in own_names])


def _history(parameters: Mapping[str, Any]) -> QueryHistory:
    cursor, oldest_first = parameters["cursor"], parameters["sort"] == _OLDEST_FIRST
    return QueryHistory(
        task_id=parameters["task_id"],
        pool_name=parameters["pool_name"],
        owner=parameters["owner"],
        agent_name=parameters["agent_name"],
        state=parameters["state"],
        labels=dict(parameters["label"]),
        since=parameters["since"],
        until=parameters["until"],
        limit=parameters["limit"],
        before=None if oldest_first else cursor,
        after=(cursor or 0) if oldest_first else None,
        with_events=parameters["with_events"],
        at_once=parameters["at_once"],
    )


async def _attempts(
    facts: Json, _given: Mapping[str, Any], _query: QueryParams, _turns: PortionTurns
) -> Json:
    rows = facts["attempts"]
    following = str(rows[-1]["cursor"]) if facts["more"] else None
    return {"items": rows, "next": following, "behind": facts["behind"]}


def _usage(parameters: Mapping[str, Any]) -> QueryUsage:
    return QueryUsage(
        by=parameters["by"],
        since=parameters["since"],
        until=parameters["until"],
        label=parameters["label_key"],
        at_once=parameters["at_once"],
    )


async def _sums(
    facts: Json, parameters: Mapping[str, Any], query: QueryParams, turns: PortionTurns
) -> Json:
    usage_names = {parameter.name for parameter in _USAGE}
    listing_query = [(key, value) for key, value in query.multi_items() if key not in usage_names]
    if "sort" not in query:
        listing_query.append(("sort", _MOST_GPUS_FIRST))
    listing = QueryParams(listing_query)
    page = await page_of(facts["usage"], UsageInfo, (parameters["by"],), listing, turns)
    period = {name: facts[name] for name in ("since", "until", "behind")}
    return {"items": page.items, "total": page.total, "next": page.following, **period}


def _events_after(parameters: Mapping[str, Any]) -> QueryEvents:
    return QueryEvents(
        after=parameters["cursor"],
        limit=parameters["limit"],
        task_id=parameters["task_id"],
        pool_name=parameters["pool_name"],
        kinds=parameters["kind"],
    )


async def _happened(
    facts: Json, parameters: Mapping[str, Any], _query: QueryParams, _turns: PortionTurns
) -> Json:
    rows, cursor = facts["events"], facts["cursor"]
    following = str(cursor) if len(rows) == parameters["limit"] else None
    stream_state = {name: facts[name] for name in ("cursor", "gap", "behind")}
    return {"items": rows, "next": following, **stream_state}


_AT_ONCE = p.flag(
    "at_once",
    "Whether to answer at once; else the answer waits, up to 2 s, for what is durable already.",
)
#: By which events are chosen, in pages and in streams.
EVENT_FILTERS = (
    p.name("task_id", "Only those of this task."),
    p.name("pool_name", "Only those about this pool and its tasks."),
    p.names("kind", "Only those of one of these kinds."),
)
_HISTORY = (
    p.name("task_id", "Only those of this task."),
    p.name("pool_name", "Only those in this pool."),
    p.name("owner", "Only those of this owner."),
    p.name("agent_name", "Only those on an agent of this name."),
    p.name("state", "Only those in this state."),
    p.labels("label", "KEY=VALUE; every one has to hold."),
    p.time("since", "Only those that had not ended before."),
    p.time("until", "Only those that were submitted before."),
    p.flag("with_events", "Whether each has its events."),
    _AT_ONCE,
    p.choice("sort", "The newest or the oldest first.", (_NEWEST_FIRST, _OLDEST_FIRST)),
    p.count("cursor", "`next` of the page before, with the same `sort`."),
    _LIMIT,
)
_USAGE = (
    p.choice("by", "By what is summed up.", GROUPINGS),
    p.name("label_key", "With by=label: only the values of this label."),
    p.time("since", "The begin; it is extended to a whole hour.", "24h"),
    p.time("until", "The end; it is extended to a whole hour."),
    _AT_ONCE,
)
_EVENTS = (
    *EVENT_FILTERS,
    p.count("cursor", "Those after the event with this cursor; 0: from the beginning.", default=0),
    _LIMIT,
)

QUESTIONS = (
    Question(
        path="/history",
        summary="List attempts to run tasks, past and present",
        row=AttemptInfo,
        parameters=_HISTORY,
        asks=QueryHistory,
        request=_history,
        answer=_attempts,
        beside={"next": _NEXT, "behind": _BEHIND},
    ),
    Question(
        path="/usage",
        summary="Sum up GPU-hours, CPU-hours, waiting and lost work by pool, owner or label",
        row=UsageInfo,
        parameters=_USAGE,
        listed=True,
        asks=QueryUsage,
        request=_usage,
        answer=_sums,
        beside={
            "total": {"type": "integer"},
            "next": _NEXT,
            "since": {"type": "number"},
            "until": {"type": "number"},
            "behind": _BEHIND,
        },
    ),
    Question(
        path="/events",
        summary="List what happened, in its order",
        row=HistoryEvent,
        parameters=_EVENTS,
        asks=QueryEvents,
        request=_events_after,
        answer=_happened,
        beside={
            "next": _NEXT,
            "cursor": {"type": "integer", "description": "Where later events follow."},
            "gap": {
                "enum": [None, "removed", "began_again"],
                "description": "Why events after `cursor` are missing; null: none are.",
            },
            "behind": _BEHIND,
        },
    ),
)

#: The parameters of a stream of events, whose path is below that of the events.
STREAM_PATH = "/events/stream"
STREAM_SUMMARY = "Stream what happens as server-sent events; `Last-Event-ID` resumes without a gap"
STREAM_PARAMETERS = (
    *EVENT_FILTERS,
    p.count("after", "Begin after the event with this cursor; 0: from the beginning; else: now."),
)
