"""The calls of both scheduler objects about what has happened: attempts, events, and the use of resources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from schedulemesh.core.client import audit, history
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.audit import AuditResult
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.history_results import (
    EventsResult,
    ExportResult,
    HistoryResult,
    UsageResult,
)


@public_calls
class HistoryCalls:
    """Answers what has happened, for both kinds of scheduler objects."""

    _connection: Connection

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
    ) -> HistoryResult:
        """Return ``attempts`` to run tasks, the newest first; of one task: all of its attempts.

        Each says who submitted it, how long it waited, where it ran, by whom it was evicted, how it ended and
        what it used. ``since`` leaves out those that ended before, ``until`` those that were submitted later;
        both are seconds since 1970, "2h" (ago; s, m, h, d or w) or a date such as "2026-11-01T12:00".
        ``before`` continues a list: those with a lower ``cursor``.
        """
        given: dict[str, object] = {
            "task_id": task_id,
            "pool_name": pool,
            "owner": owner,
            "state": state,
            "labels": labels,
            "since": since,
            "until": until,
            "limit": limit,
            "before": before,
            "with_events": with_events,
        }
        return history.history(self._connection, given)

    def usage(
        self,
        by: str = "pool",
        *,
        since: float | str = "24h",
        until: float | str | None = None,
        label: str | None = None,
    ) -> UsageResult:
        """Return ``usage``: GPU-hours, CPU-hours, waiting and lost work by "pool", "owner" or "label".

        The time span is extended to whole hours, and answered as ``since`` and ``until``. What still runs is
        included up to now. ``label`` lists only the values of this label.
        """
        return history.usage(self._connection, by, since, until, label)

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
        return history.events(self._connection, after, limit, wait_s, task_id, pool, kinds)

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
        given: dict[str, object] = {
            "token": token,
            "call": call,
            "outcome": outcome,
            "since": since,
            "limit": limit,
        }
        return audit.audit(self._connection, given)

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
        return history.export_history(self._connection, path, format, since, until)
