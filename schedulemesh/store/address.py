"""The address of a journal: a file on this node, or rows of a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from schedulemesh.errors import JournalError

if TYPE_CHECKING:  # imported only where there is a database, because it takes long
    from sqlalchemy import URL

_DRIVER = "postgresql+psycopg"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of one scheduler's journal. A database may hold several, a file holds one."""

    namespace: str
    name: str
    #: The file; None: the journal is in a database.
    path: Path | None = None
    #: The database; None: the journal is a file.
    url: URL | None = None

    def __str__(self) -> str:
        """The address as messages show it, without a password."""
        if self.url is None:
            return str(self.path)
        return f"{self.namespace}/{self.name} in {self.url.render_as_string(hide_password=True)}"

    @property
    def engine_url(self) -> URL:
        """The URL for SQLAlchemy. A file must exist already, so that a lost one is not created again."""
        if self.url is not None:
            return self.url
        from sqlalchemy import URL  # noqa: PLC0415  # see above

        file = f"file:{quote(str(self.path))}"
        return URL.create("sqlite", database=file, query={"mode": "rw", "uri": "true"})


class JournalAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a journal is stored; its history is in the same database, or in a file beside it."""

    address: Address
    #: The journal's number in its database.
    journal: int


def address_of(state_path: str | None, default: Path, namespace: str, name: str) -> Address:
    """The address of this scheduler's journal under ``state_path``, or in the folder ``default``.

    Raises JournalError for a URL that does not name a PostgreSQL database.
    """
    if state_path is not None and "://" in state_path:
        return Address(namespace=namespace, name=name, url=_database(state_path))
    folder = default if state_path is None else Path(state_path).absolute()
    path = folder / _in_a_path(namespace) / f"{_in_a_path(name)}.sqlite"
    return Address(namespace=namespace, name=name, path=path)


def _in_a_path(name: str) -> str:
    """The name as one component of a path, so that two schedulers never share a file or leave the folder."""
    for character in "%/\0":
        name = name.replace(character, f"%{ord(character):02X}")
    return name.replace(".", "%2E") if name in (".", "..") else name


def _database(state_path: str) -> URL:
    from sqlalchemy import make_url  # noqa: PLC0415  # see above
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        url = make_url(state_path)
    except (ArgumentError, ValueError) as error:
        raise JournalError(f"state_path looks like a URL but is none: {error}") from error
    if url.drivername not in (_DRIVER, "postgresql"):
        raise JournalError(
            f"state_path names a {url.drivername!r} database; it must be a folder, or a URL "
            f"that begins with {_DRIVER}://"
        )
    try:
        import psycopg  # noqa: F401, PLC0415  # imported only where a database is used
    except ImportError as error:
        raise JournalError(
            "a journal in PostgreSQL needs psycopg: pip install 'schedulemesh-core[postgres]'"
        ) from error
    return url.set(drivername=_DRIVER)
