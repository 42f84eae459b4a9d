"""Removes what is older, or more, than the settings say."""

from __future__ import annotations

import threading

from sqlalchemy import Column, Connection, Table, delete, func, select

from schedulemesh.config.settings import HistorySettings
from schedulemesh.store.history.schema import attempts, by_index, events, steps, usage
from schedulemesh.store.history.usage import HOUR_S

#: Rows that one transaction removes, so that writing never waits for long.
_AT_ONCE = 5_000
#: Events that are kept for each attempt that is kept, on average.
_EVENTS_EACH = 20


class Retention:
    """Removes old attempts, events and sums of one journal; attempts that are open stay."""

    def __init__(self, journal: int, settings: HistorySettings) -> None:
        self._journal, self._settings = journal, settings

    def apply(self, connection: Connection, now: float, stop: threading.Event) -> int:
        """Remove what is too old or too much; returns how many attempts that were."""
        settings, removed = self._settings, 0
        of_journal = attempts.c.journal == self._journal
        oldest = now - settings.keep_s
        first = self._highest(connection, attempts.c.id) - settings.keep_tasks
        over = (attempts.c.ended_at < oldest) | (attempts.c.id <= first)
        while not stop.is_set():
            query = select(attempts.c.id).where(of_journal, attempts.c.open.is_(False), over)
            with connection.begin():
                rows = connection.execute(query.order_by(attempts.c.id).limit(_AT_ONCE))
                ids = rows.scalars().all()
                if ids:
                    self._remove(connection, list(ids))
            removed += len(ids)
            if len(ids) < _AT_ONCE:
                break
        first = self._highest(connection, events.c.number) - settings.keep_tasks * _EVENTS_EACH
        for table in (events, steps):
            self._remove_events(connection, table, oldest, first, stop)
        hours = (usage.c.journal == self._journal) & (
            usage.c.hour < (now - settings.keep_usage_s) // HOUR_S
        )
        with connection.begin():
            connection.execute(delete(usage).where(hours))
        return removed

    def _remove(self, connection: Connection, ids: list[int]) -> None:
        """Remove these attempts, sorted by id, with their events."""
        for first in range(0, len(ids), 500):
            some = ids[first : first + 500]
            of_attempts = by_index(events, self._journal) & events.c.attempt.in_(some)
            connection.execute(delete(events).where(of_attempts))
            gone = (attempts.c.journal == self._journal) & attempts.c.id.in_(some)
            connection.execute(delete(attempts).where(gone))

    def _remove_events(
        self,
        connection: Connection,
        table: Table,
        oldest: float,
        first: int,
        stop: threading.Event,
    ) -> None:
        """Remove the events, or the steps, that are too old or too many: up to the number ``first``."""
        of_journal = table.c.journal == self._journal
        old_ones = (table.c.at < oldest) | (table.c.number <= first)
        while not stop.is_set():
            query = select(table.c.number, table.c.at).where(of_journal)
            with connection.begin():
                rows = connection.execute(query.order_by(table.c.number).limit(_AT_ONCE)).all()
                old = [row.number for row in rows if row.at < oldest or row.number <= first]
                if old:
                    gone = of_journal & table.c.number.between(old[0], old[-1])
                    connection.execute(delete(table).where(gone, old_ones))
            if len(old) < _AT_ONCE:
                return

    def _highest(self, connection: Connection, column: Column[int]) -> int:
        """The highest number of a row; 0: there is none."""
        of_journal = column.table.c.journal == self._journal
        with connection.begin():
            highest: int | None = connection.execute(
                select(func.max(column)).where(of_journal)
            ).scalar()
        return highest or 0
