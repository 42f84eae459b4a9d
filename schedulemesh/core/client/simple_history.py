"""The calls of SimpleScheduler about what has happened, which are those of its RayScheduler."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.history_export import ExportResult
from schedulemesh.core.client.history_results import EventsResult, HistoryResult, UsageResult
from schedulemesh.core.client.scheduler import RayScheduler


@public_calls
class SimpleHistoryCalls:
    """Answers what has happened. RayScheduler says more of each call."""

    #: The RayScheduler that carries out the calls.
    scheduler: RayScheduler

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
        """Return ``attempts`` to run tasks, the newest first; see RayScheduler.history."""
        return self.scheduler.history(
            task_id,
            pool=pool,
            owner=owner,
            state=state,
            labels=labels,
            since=since,
            until=until,
            limit=limit,
            before=before,
            with_events=with_events,
        )

    def usage(
        self,
        by: str = "pool",
        *,
        since: float | str = "24h",
        until: float | str | None = None,
        label: str | None = None,
    ) -> UsageResult:
        """Return ``usage`` by "pool", "owner" or "label"; see RayScheduler.usage."""
        return self.scheduler.usage(by, since=since, until=until, label=label)

    def events(
        self,
        after: int | None = 0,
        *,
        limit: int = 1000,
        wait_s: float = 0.0,
        task_id: str | None = None,
        kinds: Iterable[str] = (),
    ) -> EventsResult:
        """Return ``events`` in their order; see RayScheduler.events."""
        return self.scheduler.events(
            after, limit=limit, wait_s=wait_s, task_id=task_id, kinds=kinds
        )

    def export_history(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,  # noqa: A002  # as RayScheduler calls it
        since: float | str | None = None,
        until: float | str | None = None,
    ) -> ExportResult:
        """Write all attempts to run tasks to a file; see RayScheduler.export_history."""
        return self.scheduler.export_history(path, format=format, since=since, until=until)
