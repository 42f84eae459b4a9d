"""Answers questions about the history: attempts, the use of resources, and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, case, func, select
from sqlalchemy.sql import and_

from schedulemesh.domain.resources import UNIT
from schedulemesh.store.history.attempts import FIELDS, Attempt, attempt_of
from schedulemesh.store.history.filters import Filters, Span
from schedulemesh.store.history.schema import (
    attempts,
    by_index,
    events,
    nodes,
    progress,
    steps,
    usage,
)
from schedulemesh.store.history.usage import (
    HOUR_S,
    NAMES,
    Dimension,
    Sums,
    group_of,
    names_of,
    remainder,
)

#: The most rows that one answer has.
MOST = 10_000
#: How the columns of an attempt that are not shown as they are stored are called.
_HIDDEN = frozenset(
    (
        "id",
        "number",
        "cpu",
        "memory",
        "gpu",
        "custom",
        "labels",
        "node_labels",
        "starts_after",
        "nodes",
        "charged",
        "open",
    )
)


class History:
    """The history of one journal, read on a connection. ``now`` is in seconds since 1970."""

    def __init__(self, connection: Connection, journal: int, now: float) -> None:
        self._connection, self._journal, self._now = connection, journal, now

    def attempts(self, filters: Filters, limit: int, span: Span) -> list[dict[str, Any]]:
        """The first attempts of a part of the list."""
        query = select(attempts).where(*self._conditions(filters))
        if span.before is not None:
            query = query.where(attempts.c.id < span.before)
        if span.after is not None:
            query = query.where(attempts.c.id > span.after).order_by(attempts.c.id)
        else:
            query = query.order_by(attempts.c.id.desc())
        node_ids = self._node_ids()
        answers: list[dict[str, Any]] = []
        # Labels are compared here, so rows are read until there are enough that have them.
        rows = self._connection.execution_options(yield_per=500).execute(query)
        for row in rows:
            attempt = attempt_of(row)
            if _has(attempt, filters.labels):
                answers.append(self._shown(attempt, node_ids))
                if len(answers) == limit:
                    break
        rows.close()
        return answers

    def events_of(self, ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
        """The events of these attempts, in their order, by attempt."""
        by_attempt: dict[int, list[dict[str, Any]]] = {number: [] for number in ids}
        of_attempts = by_index(events, self._journal) & events.c.attempt.in_(ids)
        for row in self._connection.execute(
            select(events).where(of_attempts).order_by(events.c.number)
        ):
            by_attempt[row.attempt].append(_event(row))
        return by_attempt

    def events(
        self,
        after: int,
        limit: int,
        task_id: str | None = None,
        kinds: Iterable[str] = (),
        pool_names: tuple[str, ...] | None = None,
    ) -> list[dict[str, Any]]:
        """The events after the one with this ``cursor``, in their order. ``pool_names``: only of the pool
        that has had these names.
        """
        joined = events.outerjoin(
            attempts,
            and_(attempts.c.journal == events.c.journal, attempts.c.id == events.c.attempt),
        )
        named = ("task_id", "agent_name", "pool_name", "owner")
        query = select(events, *(attempts.c[name] for name in named)).select_from(joined)
        if task_id is None:
            query = query.where(events.c.journal == self._journal)
        else:
            of_journal = by_index(events, self._journal)
            query = query.where(of_journal, events.c.attempt.in_(self._attempts_of(task_id)))
        query = query.where(events.c.number > after)
        if pool_names is not None:
            itself = events.c.attempt.is_(None) & events.c.subject.in_(pool_names)
            query = query.where(itself | attempts.c.pool_name.in_(pool_names))
        if chosen := tuple(kinds):
            query = query.where(events.c.kind.in_(chosen))
        rows = self._connection.execute(query.order_by(events.c.number).limit(limit))
        return [_event(row) | {name: getattr(row, name) or "" for name in named} for row in rows]

    def newest_before(self, at: float) -> int:
        """The cursor of the newest event before a time, in seconds since 1970; 0: there is none."""
        query = select(func.max(events.c.number)).where(
            events.c.journal == self._journal, events.c.at < at
        )
        return self._connection.execute(query).scalar() or 0

    def task_events(
        self, after: int, limit: int, kinds: Iterable[str]
    ) -> list[tuple[int, float, str, dict[str, Any]]]:
        """The events of these kinds after the one with this ``cursor``, in their order: cursor, time, kind,
        and the attempt that each is about.
        """
        joined = events.join(
            attempts,
            and_(attempts.c.journal == events.c.journal, attempts.c.id == events.c.attempt),
        )
        of_event = (
            events.c.number.label("event"),
            events.c.at.label("event_at"),
            events.c.kind.label("event_kind"),
        )
        query = (
            select(attempts, *of_event)
            .select_from(joined)
            .where(
                events.c.journal == self._journal,
                events.c.number > after,
                events.c.kind.in_(tuple(kinds)),
            )
            .order_by(events.c.number)
            .limit(limit)
        )
        node_ids = self._node_ids()
        return [
            (row.event, row.event_at, row.event_kind, self._shown(attempt_of(row), node_ids))
            for row in self._connection.execute(query)
        ]

    def _attempts_of(self, task_id: str) -> Sequence[int]:
        """The numbers of the attempts of a task."""
        of_task = by_index(attempts, self._journal) & (attempts.c.task_id == task_id)
        return self._connection.execute(select(attempts.c.id).where(of_task)).scalars().all()

    def event_span(self) -> tuple[int, int]:
        """The cursors of the oldest event that is kept and of the newest one; where none is kept, the first
        is one higher than the second. Steps have numbers of the same sequence.
        """
        of_journal = progress.c.journal == self._journal
        following = (
            self._connection.execute(select(progress.c.next_event).where(of_journal)).scalar() or 1
        )
        oldest: list[int | None] = [
            self._connection.execute(
                select(func.min(table.c.number)).where(table.c.journal == self._journal)
            ).scalar()
            for table in (events, steps)
        ]
        return min((one for one in oldest if one), default=following), following - 1

    def usage(
        self, by: Dimension, since: float, until: float, label: str | None
    ) -> list[dict[str, Any]]:
        """What was used in the hours from ``since`` to ``until``, by name; most GPUs first.

        Both are whole hours. ``label``: only of the labels with this key. What has no label, or none with the
        key, is under the empty name, so that nothing is missing in the sum.
        """
        by_name = self._sums(by, since, until, label)
        if label is not None:
            every = self._sums(Dimension.POOL, since, until, None)
            if (rest := remainder(every.values(), by_name.values())) is not None:
                by_name[""] = rest
        rows = [{str(by.name).lower(): name} | _public(sums) for name, sums in by_name.items()]
        return sorted(rows, key=lambda row: (-row["gpu_hours"], -row["cpu_hours"]))

    def _sums(
        self, by: Dimension, since: float, until: float, label: str | None
    ) -> dict[str, Sums]:
        """What was used, what is being used and what waits, by name."""
        by_name = self._ended_usage(by, since, until, label)
        self._add_open(by_name, by, since, min(until, self._now), label)
        self._add_waiting(by_name, by, since, min(until, self._now), label)
        return by_name

    def _ended_usage(
        self, by: Dimension, since: float, until: float, label: str | None
    ) -> dict[str, Sums]:
        of_dimension = (usage.c.journal == self._journal) & (usage.c.dimension == int(by))
        span = usage.c.hour.between(int(since // HOUR_S), int(-(-until // HOUR_S)) - 1)
        sums = [func.sum(usage.c[name]).label(name) for name in NAMES]
        query = select(usage.c.name, *sums).where(of_dimension, span).group_by(usage.c.name)
        if label is not None:
            query = query.where(usage.c.name.startswith(f"{label}=", autoescape=True))
        by_name = {}
        for row in self._connection.execute(query):
            values = {name: getattr(row, name) for name in NAMES}
            counts = {n: int(values[n]) for n in NAMES if isinstance(getattr(Sums(), n), int)}
            by_name[str(row.name)] = Sums(**(values | counts))
        return by_name

    def _add_open(
        self, by_name: dict[str, Sums], by: Dimension, since: float, until: float, label: str | None
    ) -> None:
        """Add what is being used, up to now."""
        running = attempts.c.open & attempts.c.charged & (attempts.c.started_at < until)
        query = select(attempts).where(by_index(attempts, self._journal), running)
        for row in self._connection.execute(query):
            attempt = attempt_of(row)
            seconds = until - max(since, attempt.started_at or until)
            for dimension, name in names_of(*group_of(attempt)):
                if dimension != by or (label is not None and not name.startswith(f"{label}=")):
                    continue
                by_name.setdefault(name, Sums()).use(attempt, max(0.0, seconds))

    def _add_waiting(
        self, by_name: dict[str, Sums], by: Dimension, since: float, until: float, label: str | None
    ) -> None:
        """Add the time for which tasks have waited that still wait."""
        queued_at = attempts.c.queued_at
        waiting = attempts.c.open & attempts.c.started_at.is_(None) & (queued_at < until)
        named = (attempts.c.pool_name, attempts.c.owner, attempts.c.labels)
        waited_s = func.sum(until - case((queued_at > since, queued_at), else_=since))
        query = select(*named, waited_s).where(by_index(attempts, self._journal), waiting)
        for pool_name, owner, labels, seconds in self._connection.execute(query.group_by(*named)):
            for dimension, name in names_of(pool_name, owner, labels):
                if dimension == by and (label is None or name.startswith(f"{label}=")):
                    by_name.setdefault(name, Sums()).waited_s += seconds

    def _conditions(self, filters: Filters) -> list[ColumnElement[bool]]:
        by_task = filters.task_id is not None
        conditions = [
            by_index(attempts, self._journal) if by_task else attempts.c.journal == self._journal
        ]
        if filters.pool_names is not None:
            conditions.append(attempts.c.pool_name.in_(filters.pool_names))
        for name in ("task_id", "owner", "agent_name", "state"):
            value = getattr(filters, name)
            if value is not None:
                conditions.append(attempts.c[name] == value)
        if filters.since is not None:
            conditions.append(
                attempts.c.ended_at.is_(None) | (attempts.c.ended_at >= filters.since)
            )
        if filters.until is not None:
            conditions.append(attempts.c.submitted_at < filters.until)
        return conditions

    def _node_ids(self) -> dict[int, str]:
        of_journal = nodes.c.journal == self._journal
        return {
            row.id: row.node_id for row in self._connection.execute(select(nodes).where(of_journal))
        }

    def _shown(self, attempt: Attempt, node_ids: Mapping[int, str]) -> dict[str, Any]:
        """An attempt as it is answered: what is not known is None, or an empty text."""
        shown: dict[str, Any] = {
            name: getattr(attempt, name) for name in FIELDS if name not in _HIDDEN
        }
        numbers = msgspec.json.decode(attempt.nodes, type=list[int]) if attempt.nodes else []
        used_until = attempt.released_at or (self._now if attempt.charged else attempt.ended_at)
        used_s = _span(attempt.started_at, used_until)
        waits_until = attempt.started_at or attempt.ended_at or self._now
        return shown | {
            "cursor": attempt.id,
            "attempt": attempt.number,
            "cpu": attempt.cpu / UNIT,
            "memory_mb": attempt.memory / UNIT,
            "gpu": attempt.gpu / UNIT,
            "custom": {n: units / UNIT for n, units in _object(attempt.custom).items()},
            "labels": _object(attempt.labels),
            "label_selector": _object(attempt.node_labels),
            "after": msgspec.json.decode(attempt.starts_after) if attempt.starts_after else [],
            "node_ids": [node_ids.get(number, "") for number in numbers],
            "waited_s": _span(attempt.queued_at, waits_until),
            "ran_s": _span(attempt.started_at, attempt.ended_at or self._now),
            "cpu_s": used_s * attempt.cpu / UNIT,
            "gpu_s": used_s * attempt.gpu / UNIT,
        }


def _has(attempt: Attempt, labels: Mapping[str, str]) -> bool:
    if not labels:
        return True
    own_labels = _object(attempt.labels)
    return all(own_labels.get(key) == value for key, value in labels.items())


def _object(text: str) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(text) if text else {}
    return decoded


def _span(begin: float | None, end: float | None) -> float:
    return 0.0 if begin is None or end is None else max(0.0, end - begin)


def _event(row: Row[Any]) -> dict[str, Any]:
    """An event as it is answered."""
    event = {"cursor": row.number, "at": row.at, "kind": row.kind, "subject": row.subject or ""}
    return event | {"detail": _object(row.detail or "")}


def _public(sums: Sums) -> dict[str, Any]:
    """Sums as they are answered: hours, and counts."""
    return {
        "gpu_hours": sums.gpu_s / HOUR_S,
        "cpu_hours": sums.cpu_s / HOUR_S,
        "memory_gb_hours": sums.memory_mb_s / 1024 / HOUR_S,
        "waiting_hours": sums.waited_s / HOUR_S,
        "lost_hours": sums.lost_s / HOUR_S,
        "lost_gpu_hours": sums.lost_gpu_s / HOUR_S,
        "started": sums.started,
        "completed": sums.completed,
        "failed": sums.failed,
        "cancelled": sums.cancelled,
        "lost": sums.lost,
        "preempted": sums.preempted,
    }
