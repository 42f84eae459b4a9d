"""Reaches databases through SQLAlchemy: journals in PostgreSQL, and whatever the history keeps.

Imported only where one of these is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from schedulemesh.store.address import Address
from schedulemesh.store.connections import ServerError, Values, set_pragmas

#: PostgreSQL: give up on a server that does not answer within seconds, not hours.
_CONNECT_ARGS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


class ServerConnection:
    """A connection to PostgreSQL. After an error it is closed, because the server may be gone."""

    def __init__(self, address: Address) -> None:
        with _server_errors():
            self.connection = engine_of(address).connect()
        self.is_open = True

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See JournalConnection."""
        try:
            with _server_errors(), self.connection.begin():
                yield
        except ServerError:
            self.close()
            raise

    def rows(self, query: str, values: Values = {}) -> list[tuple[Any, ...]]:  # noqa: B006  # read only
        """See JournalConnection."""
        return [tuple(row) for row in self.connection.execute(_statement(query), values)]

    def change(self, statement: str, values: Values = {}) -> int:  # noqa: B006  # read only
        """See JournalConnection."""
        return self.connection.execute(_statement(statement), values).rowcount

    def change_each(self, statement: str, rows: Sequence[Values]) -> None:
        """See JournalConnection."""
        self.connection.execute(_statement(statement), rows)

    def close(self) -> None:
        """See JournalConnection."""
        self.is_open = False
        with contextlib.suppress(SQLAlchemyError):
            self.connection.close()


@contextlib.contextmanager
def _server_errors() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise ServerError(error) from error


@lru_cache(maxsize=64)
def _statement(statement: str) -> TextClause:
    return text(statement)


def engine_of(address: Address) -> Engine:
    """The SQLAlchemy engine of the journal's file or database; nothing is connected yet."""
    if address.url is not None:
        engine = create_engine(address.url, poolclass=NullPool, connect_args=_CONNECT_ARGS)
        event.listen(engine, "connect", _insist_on_disk)
        return engine
    arguments = {"check_same_thread": False}
    engine = create_engine(address.engine_url, poolclass=NullPool, connect_args=arguments)
    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def with_snapshots(engine: Engine, address: Address) -> Engine:
    """The engine for reads: in a database too all statements of a transaction see the same rows, as they do
    in SQLite.
    """
    if address.url is None:
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _insist_on_disk(connection: Any, _record: object) -> None:
    """Have commits wait for the server's disk, whatever the server's default."""
    connection.execute("SET synchronous_commit TO on")
    connection.commit()
