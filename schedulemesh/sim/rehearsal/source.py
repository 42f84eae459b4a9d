"""Reads the history of a scheduler from its state folder, its file or its database, without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Row, String, column, select, table
from sqlalchemy.exc import SQLAlchemyError

from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.sim.rehearsal.recording import Recording, recorded
from schedulemesh.store.address import Address, address_of
from schedulemesh.store.disk import reason_of
from schedulemesh.store.history.attempts import Attempt, attempt_of
from schedulemesh.store.history.commits import SqlCommits
from schedulemesh.store.history.events import OBSERVED, Event
from schedulemesh.store.history.export import WRITERS
from schedulemesh.store.history.schema import attempts, events, nodes, steps
from schedulemesh.store.history.tables import HEAD, VERSION_TABLE, history_engine, history_path
from schedulemesh.store.schema import journals
from schedulemesh.store.server import engine_of

#: A moment that no commit comes after.
_ALL = 2**62
#: What reading damaged files raises. Python cannot decode the messages of SQLite that quote damaged parts.
_UNREADABLE = (
    JournalError,
    SQLAlchemyError,
    sqlite3.Error,
    OSError,
    msgspec.MsgspecError,
    UnicodeDecodeError,
)
_DEFINITIONS = (
    "pool_defined",
    "pool_renamed",
    "pool_deleted",
    "cohort_defined",
    "cohort_renamed",
    "cohort_deleted",
    "policy_changed",
    "queue_policy_changed",
    "node_joined",
    "node_changed",
    "node_lost",
    "node_cordoned",
    "node_uncordoned",
    "window_created",
    "window_ended",
    "drain_started",
    "drain_ended",
    "class_loaded",
    OBSERVED,
)


def address_at(source: str, name: str | None = None, namespace: str = "schedulemesh") -> Address:
    """The journal in a file, in a state folder, or in a database (a URL, whose scheduler ``name`` names).

    Raises InvalidRequestError where it is not there, or more than one is.
    """
    if "://" in source:
        if name is None:
            raise InvalidRequestError("a database may hold several schedulers; give --name")
        return address_of(source, Path(), namespace, name)
    path = Path(source).expanduser().absolute()
    if path.is_file():
        if path.suffix.lstrip(".").lower() in WRITERS:
            raise InvalidRequestError(
                f"{path} is an export of the history, which has neither nodes nor pools nor policies, so it "
                "cannot be rehearsed. Give the state folder or the URL of the database, or simulate the "
                "jobs of the export: schedulemesh simulate FILE --cluster ... --policy ..."
            )
        if name not in (None, path.stem):
            raise InvalidRequestError(
                f"--name is {name!r}, and {path} is the journal of {path.stem!r}; leave out --name, or give "
                "the state folder"
            )
        return Address(namespace=namespace, name=path.stem, path=path)
    if not path.exists():
        raise InvalidRequestError(f"there is no file or folder {source}")
    journal_paths = sorted(one for one in path.rglob("*.sqlite") if name in (None, one.stem))
    if len(journal_paths) != 1:
        what = "no journal" if not journal_paths else f"{len(journal_paths)} journals: give --name"
        raise InvalidRequestError(f"{source} contains {what}")
    return Address(namespace=namespace, name=journal_paths[0].stem, path=journal_paths[0])


def open_history(
    source: str,
    since: float | None = None,
    name: str | None = None,
    namespace: str = "schedulemesh",
) -> Recording:
    """The history of the journal at ``source``, from the last moment before ``since`` (seconds since 1970) at
    which nothing ran or waited; None: all of it. Raises InvalidRequestError where there is none, and
    JournalError where it cannot be read.
    """
    address = address_at(source, name, namespace)
    with _read_errors(address):
        return _read_recording(address, since)


def _read_recording(address: Address, since: float | None) -> Recording:
    journal = _journal(address)
    with _reading(address) as connection:
        rows = connection.execute(
            select(attempts).where(attempts.c.journal == journal).order_by(attempts.c.id)
        )
        every = [attempt_of(row) for row in rows]
        first = _first(every, since)
        of_journal = events.c.journal == journal
        rows = connection.execute(select(events).where(of_journal).order_by(events.c.number))
        noted = [_event(row) for row in rows]
        rows = connection.execute(select(steps).where(steps.c.journal == journal))
        noted = sorted([*noted, *map(_step, rows)], key=lambda one: one.number)
        node_rows = connection.execute(select(nodes).where(nodes.c.journal == journal))
        node_ids = {int(row.id): str(row.node_id) for row in node_rows}
    begin = next(
        (one.number for one in noted if one.attempt is not None and one.attempt >= first), None
    )
    if begin is None:
        raise InvalidRequestError(f"the history of {address} contains no tasks")
    recording = recorded(
        (one for one in noted if one.number >= begin),
        (one for one in every if one.id >= first),
        node_ids,
    )
    before = [one for one in noted if one.number < begin]
    recording.definitions = [one for one in before if one.kind in _DEFINITIONS]
    recording.missing = noted[0].number - 1
    recording.groups = _standing(before)
    commits = SqlCommits(address, journal)
    recording.present = commits.upto(_ALL).fold()
    commits.close()
    return recording


def _standing(before: list[Event]) -> frozenset[str]:
    """The placement groups that were created with these events, and not removed."""
    created, removed = (
        {one.subject for one in before if one.kind == kind}
        for kind in ("group_created", "group_removed")
    )
    return frozenset(created - removed)


@contextmanager
def _read_errors(address: Address) -> Iterator[None]:
    """Turn errors of files and of the database into JournalError: what cannot be read, and what to do."""
    try:
        for path in filter(None, (address.path, history_path(address))):
            # SQLite would make a database of an empty file, and what is read here is not changed.
            if path.exists() and not path.stat().st_size:
                raise sqlite3.DatabaseError(f"{path.name} is empty")
        yield
    except _UNREADABLE as error:
        reason = reason_of(getattr(error, "orig", None) or error)
        raise JournalError(
            f"{address} and its history cannot be read: {reason}. {_advice(address)}"
        ) from error


def _advice(address: Address) -> str:
    if address.path is None:
        return "Check the URL, and that the database answers"
    name = address.path.name
    return f"Give a folder with intact copies of {name} and {name}.history"


def _first(every: list[Attempt], since: float | None) -> int:
    """The first attempt after the last moment before ``since`` at which there was none; None: 0."""
    first, busy_until = 0, 0.0
    for attempt in every:
        begin = attempt.submitted_at or 0.0
        if since is None or begin > since:
            break
        if begin > busy_until:
            first = attempt.id
        end = attempt.released_at or attempt.ended_at
        busy_until = max(busy_until, float("inf") if attempt.open or end is None else end)
    return first


def _journal(address: Address) -> int:
    """The number of the journal. Raises InvalidRequestError where there is none."""
    query = select(journals.c.id)
    if address.url is not None:
        query = query.where(
            journals.c.namespace == address.namespace, journals.c.name == address.name
        )
    engine = engine_of(address)
    with engine.connect() as connection:
        journal_id = connection.execute(query).scalar()
    engine.dispose()
    if journal_id is None:
        raise InvalidRequestError(f"there is no scheduler {address}")
    return int(journal_id)


@contextmanager
def _reading(address: Address) -> Iterator[Connection]:
    """A connection to the history. Raises InvalidRequestError where there is none of this version."""
    path = history_path(address)
    if path is not None and not path.exists():
        raise InvalidRequestError(f"there is no history beside {address}")
    engine = history_engine(address)
    try:
        with engine.connect() as connection, connection.begin():
            query = select(column("version_num", String)).select_from(table(VERSION_TABLE))
            version = connection.execute(query).scalar()
            if version != HEAD:
                raise InvalidRequestError(
                    f"the history has version {version}, and this ScheduleMesh reads version {HEAD}; "
                    "start the scheduler with it once"
                )
            yield connection
    finally:
        engine.dispose()


def _event(row: Row[tuple[object, ...]]) -> Event:
    return Event(
        number=row.number,
        at=row.at,
        kind=row.kind,
        attempt=row.attempt,
        subject=row.subject or "",
        detail=row.detail or "",
        fact=row.fact or "",
    )


def _step(row: Row[tuple[object, ...]]) -> Event:
    kind = "ticked" if row.class_key is None else "class_loaded"
    return Event(
        number=row.number,
        at=row.at,
        kind=OBSERVED if row.fact else kind,
        subject=row.class_key or "",
        fact=row.fact or "",
    )
