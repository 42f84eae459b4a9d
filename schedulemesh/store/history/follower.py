"""Follows the commits of a journal: writes what follows from each of them, once.

The number of the last commit is written in the transaction that writes what follows from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from sqlalchemy import Connection

from schedulemesh.engine.codec import decode_facts
from schedulemesh.errors import JournalError
from schedulemesh.store.history.commits import Commits
from schedulemesh.store.history.database import load, write
from schedulemesh.store.history.fold import Fold
from schedulemesh.store.history.resync import resync

logger = logging.getLogger(__name__)

#: Commits that are read at once, and facts after which they are written.
_COMMITS, _FACTS = 200, 500


class Follower:
    """Continues the history of a journal where the tables are. One thread may use it.

    ``last`` gives the number of the last commit that is known to be durable; what is stored beyond it may be
    removed again. ``rolled_back``: the journal is an older copy of the one that was followed before. ``now``:
    the time in seconds since 1970.
    """

    def __init__(
        self,
        connection: Connection,
        journal: int,
        commits: Commits,
        last: Callable[[], int],
        *,
        rolled_back: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._connection, self._journal = connection, journal
        self._commits, self._last, self._now = commits, last, now
        with connection.begin():
            loaded = load(connection, journal)
        self.fold: Fold = loaded.fold
        #: The last commit whose facts are in the tables.
        self.upto = 0 if loaded.upto is None else loaded.upto
        if self.upto and (rolled_back or self.upto > last()):
            self._resync(last())

    def write_next(self) -> int | None:
        """Write the next commits: how many facts they had; None: there are no further commits."""
        last = self._last()
        if self.upto >= last:
            return None
        records = self._commits.between(self.upto, last, _COMMITS)
        if not records or records[0][0] != self.upto + 1:
            base = self._commits.base()
            if base <= self.upto:
                raise JournalError(f"commit {self.upto + 1} of the journal is missing")
            self._resync(base)
            return 0
        facts = 0
        for _, record in records:
            for fact in decode_facts(record):
                self.fold.add(fact)
                facts += 1
            self.upto += 1
            if facts >= _FACTS:
                break
        self._save()
        return facts

    def write_waits(self, reasons: Iterable[tuple[str, str, float]]) -> bool:
        """Write why queued tasks wait: ids of tasks, codes of reasons, and the times at which it was so, in
        seconds since 1970. False: nothing was new.
        """
        for task_id, reason, at in reasons:
            self.fold.at = max(self.fold.at, at)
            attempt = self.fold.tasks.get(task_id)
            if attempt is not None:
                self.fold.waits(attempt, reason)
        if self.fold.changed:
            self._save()
            return True
        return False

    def _resync(self, upto: int) -> None:
        """Go on after a commit that was not followed, from the state that it led to."""
        gap = self.upto > 0
        if gap:
            logger.warning("the history does not contain all that happened up to commit %d", upto)
        resync(self.fold, self._commits.upto(upto).fold(), self._now(), gap=gap)
        self.upto = upto
        self._save()

    def _save(self) -> None:
        with self._connection.begin():
            write(self._connection, self._journal, self.fold, self.upto)
        self.fold.saved()
