"""History calls: list attempts and events, sum up what was used, export. HistoryCalls documents each call."""

from __future__ import annotations

import os

from schedulemesh.api.history import (
    HIGHEST_CURSOR,
    MAX_ROWS,
    MAX_WAIT_S,
    QueryEvents,
    QueryHistory,
    QueryUsage,
)
from schedulemesh.core.client.asking import details
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.history_results import (
    EventsResult,
    ExportResult,
    HistoryResult,
    UsageResult,
)
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_count, parse_flag, parse_number
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.times import parse_time
from schedulemesh.store.history.export import export


def history(connection: Connection, given: dict[str, object]) -> HistoryResult:
    """The attempts to run tasks that match."""
    labels, before = given["labels"], given["before"]
    request = QueryHistory(
        task_id=_name(given["task_id"], "task_id"),
        pool_name=_name(given["pool_name"], "the pool's name"),
        owner=_name(given["owner"], "owner"),
        state=_name(given["state"], "state"),
        labels={} if labels is None else parse_labels(labels),
        since=parse_time(given["since"], "since"),
        until=parse_time(given["until"], "until"),
        limit=parse_count(given["limit"], "limit", 1, MAX_ROWS),
        before=None if before is None else parse_count(before, "before", 0, HIGHEST_CURSOR),
        with_events=parse_flag(given["with_events"], "with_events"),
    )
    return details(connection, request, HistoryResult)


def usage(
    connection: Connection, by: object, since: object, until: object, label: object
) -> UsageResult:
    """What was used."""
    begin = parse_time(since, "since")
    if begin is None:
        raise InvalidRequestError("since is needed, such as '24h'")
    grouping = as_text(by)
    if grouping is None:
        raise InvalidRequestError(f"by is {shown(by)}; it is a text")
    request = QueryUsage(
        by=grouping,
        since=begin,
        until=parse_time(until, "until"),
        label=_name(label, "label"),
    )
    return details(connection, request, UsageResult)


def events(
    connection: Connection,
    after: object,
    limit: object,
    wait_s: object,
    task_id: object,
    pool: object,
    kinds: object,
) -> EventsResult:
    """What happened, in its order."""
    request = QueryEvents(
        after=None if after is None else parse_count(after, "after", 0, HIGHEST_CURSOR),
        limit=parse_count(limit, "limit", 1, MAX_ROWS),
        wait_s=parse_number(wait_s, "wait_s", 0.0, MAX_WAIT_S),
        task_id=_name(task_id, "task_id"),
        pool_name=_name(pool, "the pool's name"),
        kinds=tuple(
            parse_name(kind, "a kind of event")
            for kind in as_elements(kinds, "kinds", "a list of kinds of events", sets=True)
        ),
    )
    return details(connection, request, EventsResult)


def export_history(
    connection: Connection,
    path: str | os.PathLike[str],
    file_format: object,
    since: object,
    until: object,
) -> ExportResult:
    """Write all attempts to a file."""
    begin, end = parse_time(since, "since"), parse_time(until, "until")

    def page(after: int, limit: int) -> HistoryResult:
        request = QueryHistory(after=after, limit=limit, since=begin, until=end)
        found = details(connection, request, HistoryResult)
        if not found["success"]:
            raise _RefusedError(found)
        return found

    try:
        done = export(page, path, file_format)
    except _RefusedError as refusal:
        answer = refusal.answer
        return ExportResult(success=False, error=answer["error"], reason=answer["reason"])
    return ExportResult(success=True, path=done.path, jobs=done.jobs, begin=done.begin)


class _RefusedError(Exception):
    """A page of the history was refused."""

    def __init__(self, answer: HistoryResult) -> None:
        super().__init__(answer["error"])
        self.answer = answer


def _name(given: object, what: str) -> str | None:
    return None if given is None else parse_name(given, what)
