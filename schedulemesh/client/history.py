"""The calls about what has happened: attempts, events, the use of resources, and the call audit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from schedulemesh.api.audit import MAX_LISTED, ChangeInfo, QueryAudit, read_changes
from schedulemesh.api.calls import check_change
from schedulemesh.api.history import (
    HIGHEST_CURSOR,
    MAX_ROWS,
    MAX_WAIT_S,
    AttemptInfo,
    HistoryEvent,
    QueryEvents,
    QueryHistory,
    QueryUsage,
    UsageInfo,
)
from schedulemesh.api.results import Result
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import SchedulerConnection, ask, details
from schedulemesh.client.results import combined
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_count, parse_flag, parse_number
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.answers import Listed
from schedulemesh.protocol.public import refused
from schedulemesh.protocol.times import parse_time
from schedulemesh.store.history.export import export


class HistoryResult(Result, total=False):
    """The answer of ``history``."""

    attempts: list[AttemptInfo]
    #: Whether there are older ones that match.
    more: bool
    #: How many commits of the journal the history does not contain yet.
    behind: int


class UsageResult(Result, total=False):
    """The answer of ``usage``."""

    usage: list[UsageInfo]
    #: The time span in whole hours, or until now.
    since: float
    until: float
    behind: int


class EventsResult(Result, total=False):
    """The answer of ``events``."""

    events: list[HistoryEvent]
    #: What ``after`` is to be in the next call.
    cursor: int
    #: None: all that followed ``after`` is here. ``removed``: older events are not kept any more;
    #: ``began_again``: the history is another one than that of ``after``, and is listed from its beginning.
    gap: str | None
    behind: int


class ExportResult(Result, total=False):
    """The answer of ``export_history``."""

    path: str
    #: How many attempts to run a task were written.
    jobs: int
    #: What time 0 of the file is, in seconds since 1970.
    begin: float


class AuditResult(Result, total=False):
    """The answer of ``audit``."""

    #: The newest first.
    changes: list[ChangeInfo]


@public_calls
class HistoryCalls(SchedulerObject):
    """A scheduler object that answers what has happened."""

    def history(
        self,
        task_id: str | None = None,
        *,
        pool: str | None = None,
        owner: str | None = None,
        state: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: float | str | None = None,
        until: float | str | None = None,
        limit: int = 100,
        before: int | None = None,
        with_events: bool = False,
        at_once: bool = False,
    ) -> HistoryResult:
        """Return ``attempts`` to run tasks, the newest first; of one task: all of its attempts.

        Each says who submitted it, how long it waited, where it ran, by whom it was evicted, how it ended and
        what it used. ``since`` leaves out those that ended before, ``until`` those that were submitted later;
        both are seconds since 1970, "2h" (ago; s, m, h, d or w) or a date such as "2026-11-01T12:00".
        ``before`` continues a list: those with a lower ``cursor``. The answer waits, up to two seconds, for
        what is durable already but not in the history yet; with ``at_once`` it does not, and ``behind`` says
        how many commits it lacks.
        """
        request = QueryHistory(
            task_id=_name(task_id, "task_id"),
            pool_name=_name(pool, "the pool's name"),
            owner=_name(owner, "owner"),
            state=_name(state, "state"),
            labels={} if labels is None else parse_labels(labels),
            since=parse_time(since, "since"),
            until=parse_time(until, "until"),
            limit=parse_count(limit, "limit", 1, MAX_ROWS),
            before=None if before is None else parse_count(before, "before", 0, HIGHEST_CURSOR),
            with_events=parse_flag(with_events, "with_events"),
            at_once=parse_flag(at_once, "at_once"),
        )
        return details(self._connection, request, HistoryResult)

    def usage(
        self,
        by: str = "pool",
        *,
        since: float | str = "24h",
        until: float | str | None = None,
        label: str | None = None,
        at_once: bool = False,
    ) -> UsageResult:
        """Return ``usage``: GPU-hours, CPU-hours, waiting and lost work by "pool", "owner" or "label".

        The time span is extended to whole hours, and answered as ``since`` and ``until``. What still runs is
        included up to now. ``label`` lists only the values of this label. ``at_once`` is as for ``history``.
        """
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
            at_once=parse_flag(at_once, "at_once"),
        )
        return details(self._connection, request, UsageResult)

    def events(
        self,
        after: int | None = 0,
        *,
        limit: int = 1000,
        wait_s: float = 0.0,
        task_id: str | None = None,
        pool: str | None = None,
        kinds: Iterable[str] = (),
    ) -> EventsResult:
        """Return ``events`` in their order, and the ``cursor`` to pass as ``after`` for those that follow.

        ``after`` None: only those that happen from now on. Where there is none, waits up to ``wait_s`` (at
        most 30) seconds for the next. ``gap`` says whether events are missing before these, and why.
        """
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
        return details(self._connection, request, EventsResult)

    def audit(
        self,
        *,
        token: str | None = None,
        call: str | None = None,
        outcome: str | None = None,
        since: float | str | None = None,
        limit: int = 100,
    ) -> AuditResult:
        """Return ``changes`` that were requested, the newest first: by whom, when, from where, and what was
        there before and after. For operators.

        ``token`` is a token's name, ``call`` that of a request such as "change_policy", ``outcome`` "done",
        "refused" or "open" (it was not answered). Submissions and ends of tasks are in ``history``.
        """
        call_name = _name(call, "call")
        if call_name is not None:
            check_change(call_name)
        request = QueryAudit(
            token=_name(token, "token"),
            call=call_name,
            outcome=_name(outcome, "outcome"),
            since=parse_time(since, "since"),
        )
        most = parse_count(limit, "limit", 1, MAX_LISTED)
        rows = read_changes(request, most, lambda page: _audit_page(self._connection, page))
        if isinstance(rows, Refused):
            return combined(AuditResult, refused(rows))
        return combined(AuditResult, {"success": True, "changes": rows})

    def export_history(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,  # noqa: A002  # as pandas and polars call it
        since: float | str | None = None,
        until: float | str | None = None,
    ) -> ExportResult:
        """Write all attempts to run tasks to a file, the oldest first; returns ``path`` and ``jobs``.

        ``format`` is "csv", "jsonl" or "parquet" (None: as the file's name ends); parquet needs pyarrow. The
        columns begin with those of a job trace: see docs/history.md. An existing file is replaced as a whole.
        """
        begin, end = parse_time(since, "since"), parse_time(until, "until")

        def page(after: int, limit: int) -> HistoryResult:
            request = QueryHistory(after=after, limit=limit, since=begin, until=end)
            answer = details(self._connection, request, HistoryResult)
            if not answer["success"]:
                raise _RefusedError(answer)
            return answer

        try:
            done = export(page, path, format)
        except _RefusedError as refusal:
            refused = refusal.answer
            return ExportResult(success=False, error=refused["error"], reason=refused["reason"])
        return ExportResult(success=True, path=done.path, jobs=done.jobs, begin=done.begin)


class _RefusedError(Exception):
    """A page of the history was refused."""

    def __init__(self, answer: HistoryResult) -> None:
        super().__init__(answer["error"])
        self.answer = answer


def _name(value: object, what: str) -> str | None:
    return None if value is None else parse_name(value, what)


def _audit_page(
    connection: SchedulerConnection, request: QueryAudit
) -> list[dict[str, Any]] | Refused:
    answer = ask(connection, request, Listed)
    return answer if isinstance(answer, Refused) else answer.rows
