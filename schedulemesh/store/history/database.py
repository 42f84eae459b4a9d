"""Writes the history of one journal, and reads back what continues after a restart.

Statements for many rows are compiled once, and their rows are given to the driver as they are: SQLAlchemy
would take longer to process the values of a row than the database takes to insert it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from sqlalchemy import Connection, Dialect, Table, delete, insert, select, update

from schedulemesh.store.history.attempts import attempt_of
from schedulemesh.store.history.events import Event, SeenNode
from schedulemesh.store.history.fold import Fold
from schedulemesh.store.history.schema import (
    attempts,
    by_index,
    events,
    nodes,
    progress,
    steps,
    usage,
)
from schedulemesh.store.history.usage import NAMES

#: Every table with rows of one journal.
TABLES = (progress, attempts, events, steps, usage, nodes)

#: Rows that one statement names.
_AT_ONCE = 500


class Loaded:
    """A fold that continues where the tables are."""

    def __init__(self, fold: Fold, upto: int | None) -> None:
        self.fold = fold
        #: The number of the last commit that the tables contain; None: the history begins.
        self.upto = upto


def load(connection: Connection, journal: int) -> Loaded:
    """What the tables say."""
    row = connection.execute(select(progress).where(progress.c.journal == journal)).first()
    if row is None:
        return Loaded(Fold(), None)
    rows = connection.execute(select(nodes).where(nodes.c.journal == journal))
    seen = {row.node_id: SeenNode(id=row.id, present=row.present) for row in rows}
    still_open = by_index(attempts, journal) & attempts.c.open
    rows = connection.execute(select(attempts).where(still_open).order_by(attempts.c.id))
    fold = Fold(
        map(attempt_of, rows),
        seen,
        next_attempt=row.next_attempt,
        next_event=row.next_event,
        at=row.at,
    )
    return Loaded(fold, row.upto)


def write(connection: Connection, journal: int, fold: Fold, upto: int) -> None:
    """Write what the fold has noted. Call in a transaction; afterwards ``fold.saved``."""
    _write_attempts(connection, journal, fold)
    _insert(connection, events, [_event_row(journal, event) for event in fold.events])
    _insert(
        connection,
        steps,
        [
            (journal, step.number, step.at, step.subject or None, step.fact or None)
            for step in fold.steps
        ],
    )
    if fold.booking.sums:
        connection.execute(_add_usage(connection), fold.booking.rows(journal))
    for node_id in fold.changed_nodes:
        node = fold.nodes[node_id]
        values = {"id": node.id, "node_id": node_id, "present": node.present}
        connection.execute(delete(nodes).where(nodes.c.journal == journal, nodes.c.id == node.id))
        connection.execute(insert(nodes), {"journal": journal, **values})
    _write_progress(connection, journal, fold, upto)


def _write_attempts(connection: Connection, journal: int, fold: Fold) -> None:
    changed = [n for n in fold.changed if n not in fold.new]
    if changed:
        # Few: an attempt that begins and ends between two writes is written once.
        gone = delete(attempts).where(attempts.c.journal == journal)
        for first in range(0, len(changed), _AT_ONCE):
            some = changed[first : first + _AT_ONCE]
            connection.execute(gone.where(attempts.c.id.in_(some)))
    _insert(connection, attempts, [attempt.row(journal) for attempt in fold.changed.values()])


def _write_progress(connection: Connection, journal: int, fold: Fold, upto: int) -> None:
    values = {
        "upto": upto,
        "next_attempt": fold.next_attempt,
        "next_event": fold.next_event,
        "at": fold.at,
    }
    statement = update(progress).where(progress.c.journal == journal).values(**values)
    if connection.execute(statement).rowcount == 0:
        connection.execute(insert(progress), {"journal": journal, **values})


def _event_row(journal: int, event: Event) -> tuple[Any, ...]:
    texts = (event.subject or None, event.detail or None, event.fact or None)
    return (journal, event.number, event.at, event.kind, event.attempt, *texts)


def _insert(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, which have a value for each column of the table, in the order of the columns."""
    if not rows:
        return
    rows = [_storable(row) for row in rows]
    dialect = connection.dialect
    if dialect.positional:
        connection.exec_driver_sql(_inserting(dialect, table), list(rows))
        return
    names = table.columns.keys()
    connection.exec_driver_sql(
        _inserting(dialect, table), [dict(zip(names, row, strict=True)) for row in rows]
    )


def _storable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row without the one character that texts of PostgreSQL cannot have; errors of user code may."""
    if not any(isinstance(value, str) and "\0" in value for value in row):
        return row
    return tuple(value.replace("\0", "\\x00") if isinstance(value, str) else value for value in row)


@lru_cache(maxsize=8)
def _inserting(dialect: Dialect, table: Table) -> str:
    """The text of the statement."""
    return str(insert(table).compile(dialect=dialect))


def _add_usage(connection: Connection) -> Any:
    """The statement that adds sums to those of the same hour."""
    # The other dialect is not imported: that of PostgreSQL takes as long as a tenth of SQLAlchemy.
    dialect: Any = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
    added = dialect.insert(usage)
    sums = {name: usage.c[name] + added.excluded[name] for name in NAMES}
    return added.on_conflict_do_update(index_elements=list(usage.primary_key), set_=sums)


def forget(connection: Connection, journal: int) -> None:
    """Remove everything of a journal."""
    for table in TABLES:
        connection.execute(delete(table).where(table.c.journal == journal))
