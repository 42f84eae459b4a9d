"""Writes the history behind the journal: in a thread of its own, on connections of its own.

It reads the commits that are durable, and writes what follows from them together with the number of the last
one in one transaction: so each is in the history once, wherever the process is killed. What it had not
written is read again after a restart; until then the journal keeps these commits, though a snapshot covers
them. Where that would be too many, the journal drops them, and the history continues with a gap.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from schedulemesh.config.settings import HistorySettings
from schedulemesh.errors import JournalError
from schedulemesh.store.address import JournalAddress
from schedulemesh.store.disk import reason_of
from schedulemesh.store.files import beside
from schedulemesh.store.history.commits import SqlCommits
from schedulemesh.store.history.database import forget
from schedulemesh.store.history.follower import Follower
from schedulemesh.store.history.pace import Pace
from schedulemesh.store.history.retention import Retention
from schedulemesh.store.history.tables import FILES, history_engine, history_path, migrate

logger = logging.getLogger(__name__)

#: Seconds between two looks for new commits.
_LOOK_S = 0.2
#: Seconds after which it tries again where the database failed.
_RETRY_S = 5.0
#: Seconds between two looks at what is too old.
_RETENTION_S = 600.0
#: Commits that the journal keeps for a history that is behind; most have 1 KB, under high load some 30 KB.
_MOST_BEHIND = 100_000
#: Reasons for waiting that are kept for a history that cannot be written, the newest ones.
_MOST_WAITS = 100_000
#: Seconds that closing waits for the write that is in progress.
_CLOSE_S = 10.0


class Recorder:
    """See the module. ``last`` gives the number of the last commit that is known to be durable."""

    def __init__(
        self,
        place: JournalAddress,
        settings: HistorySettings,
        last: Callable[[], int],
        *,
        rolled_back: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.place = place
        #: The time in seconds since 1970, by the clock that the times in the journal come from.
        self._now = now
        self._settings, self._last, self._rolled_back = settings, last, rolled_back
        self._engine: Engine | None = None
        #: The inode of the file that it writes; None: it is in a database.
        self._file: int | None = None
        self._commits = SqlCommits(place.address, place.journal)
        self._retention = Retention(place.journal, settings)
        self._retained_at = time.monotonic()
        #: The last commit when this process began.
        self._began = last()
        #: The last commit in the history; -1: that is not known yet.
        self.upto = -1
        #: Why the history cannot be written; empty: it can.
        self.trouble = ""
        self._stop = threading.Event()
        #: Reasons for waiting that are to be written, each with the last commit when it was found.
        self._waits: deque[tuple[int, str, str, float]] = deque(maxlen=_MOST_WAITS)
        self._listeners: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="history-writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def listen(self, listener: Callable[[], None]) -> None:
        """Have a function called in the thread after each write. It neither blocks nor raises."""
        self._listeners.append(listener)

    def note_wait(self, task_id: str, reason: str, at: float) -> None:
        """Why a queued task waits at a time: the code of a reason. Any thread may call it."""
        self._waits.append((self._last(), task_id, reason, at))

    def keep_after(self) -> int | None:
        """The number of the commit after which a snapshot leaves the journal's commits for the history; None:
        none, because it is too far behind.
        """
        behind = self._last() - (self._began if self.upto < 0 else self.upto)
        return None if behind > _MOST_BEHIND else max(self.upto, 0)

    def close(self, *, destroy: bool = False) -> None:
        """End the thread. What is not written is derived again later, unless all is to be removed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        if destroy:
            self._remove()

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._opened() as connection:
                    self._follow(connection)
            except (SQLAlchemyError, JournalError, OSError, msgspec.MsgspecError) as error:
                self._note_failure(error)
            except Exception:  # logged: the journal and its decisions do not depend on the history
                self._note_failure(None)
                logger.exception("the history cannot be written; it is tried again")
            self._stop.wait(_RETRY_S)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Connection]:
        """A connection to the history, whose tables are of the present version."""
        self._engine = history_engine(self.place.address)
        self._file = self._file_now()
        try:
            with self._engine.connect() as connection:
                with connection.begin():
                    migrate(connection)
                yield connection
        finally:
            self._commits.close()
            self._engine.dispose()

    def _follow(self, connection: Connection) -> None:
        """Write what becomes durable, until it is stopped or the database fails."""
        place, rolled_back = self.place, self._rolled_back
        follower = Follower(
            connection,
            place.journal,
            self._commits,
            self._last,
            rolled_back=rolled_back,
            now=self._now,
        )
        self._rolled_back, self.trouble, self.upto = False, "", follower.upto
        pace = Pace()
        while not self._stop.is_set():
            self._check_same_file()
            pace.begin()
            wrote = follower.write_next() is not None
            waits = self._take_reasons(follower.upto)
            if (waits and follower.write_waits(waits)) or wrote:
                self.upto = follower.upto
                for listener in self._listeners:
                    listener()
                self._stop.wait(pace.rest_s())
            else:
                self._retain(connection)
                self._stop.wait(_LOOK_S)

    def _file_now(self) -> int | None:
        """Which file the history is in; None: there is none, or it is in a database."""
        path = history_path(self.place.address)
        with contextlib.suppress(FileNotFoundError):
            return None if path is None else path.stat().st_ino
        return None

    def _check_same_file(self) -> None:
        """Raise JournalError where somebody has removed or replaced the file: what would be written further
        would be in no file, and nobody could read it.
        """
        if self._file_now() != self._file:
            raise JournalError("its file was removed or replaced while it was in use")

    def _take_reasons(self, upto: int) -> list[tuple[str, str, float]]:
        """Take out the reasons that were found at commits up to this one: the history contains these, and
        with them the attempts that the reasons are about.
        """
        reasons = []
        while self._waits and self._waits[0][0] <= upto:
            _, task_id, reason, at = self._waits.popleft()
            reasons.append((task_id, reason, at))
        return reasons

    def _retain(self, connection: Connection) -> None:
        """Remove what is too old, now and then."""
        if time.monotonic() - self._retained_at < _RETENTION_S:
            return
        self._retained_at = time.monotonic()
        self._retention.apply(connection, self._now(), self._stop)

    def _note_failure(self, error: Exception | None) -> None:
        """Note why the history cannot be written; a damaged file is set aside."""
        reason = getattr(error, "orig", None) or error
        trouble = "it failed" if reason is None else reason_of(reason)
        if trouble != self.trouble:
            logger.warning("the history of %s cannot be written: %s", self.place.address, trouble)
        self.trouble = trouble
        path = history_path(self.place.address)
        if path is not None and _is_damage(error):
            try:
                self._set_aside(path)
            except OSError as failed:  # a full disk, or one that can only be read: tried again
                logger.warning("the history is damaged, and cannot be set aside: %s", failed)

    def _set_aside(self, path: Path) -> None:
        """Have the history begin anew beside a damaged one."""
        journal_path = self.place.address.path or path
        aside = beside(journal_path, f".history.damaged-{int(time.time())}")
        path.rename(aside)
        for suffix in FILES[1:]:
            beside(journal_path, suffix).unlink(missing_ok=True)
        logger.error("the history is damaged; it was set aside as %s and begins anew", aside)

    def _remove(self) -> None:
        path = self.place.address.path
        if path is not None:
            for suffix in FILES:
                beside(path, suffix).unlink(missing_ok=True)
            return
        try:
            engine = history_engine(self.place.address)
            with engine.begin() as connection:
                forget(connection, self.place.journal)
        except SQLAlchemyError as error:
            logger.warning("the history of %s was not removed: %s", self.place.address, error)


def _is_damage(error: Exception | None) -> bool:
    """Whether SQLite cannot read the file for other reasons than space, rights and locks."""
    if isinstance(error, OperationalError) or not isinstance(error, DatabaseError):
        return False
    return type(error.orig) is sqlite3.DatabaseError
