"""The classes of a fair pool in the order in which a pass serves them.

The order is that of owners by what they have used, which each start changes. Against other pools a fair pool
has the place of the task that comes first in it, whatever its owner has used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.queue_classes import QueueClass
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction

#: Before every place.
_FIRST: Entry = (-inf, 0, "")


class FairClasses:
    """The classes of a fair pool in their order, which changes with every fact."""

    def __init__(
        self,
        tx: Transaction,
        pool_name: str,
        classes: list[QueueClass],
        later: dict[QueueClass, Entry],
    ) -> None:
        self.pool_name = pool_name
        self._tx, self._classes, self._later = tx, dict.fromkeys(classes), later
        self._facts = -1
        #: Nobody waits for extra members, so that they are not among the firsts of the pool.
        self._extra = [c for c in classes if c.extra]
        #: The first tasks of the pool's classes, behind that of the class ``_first_of_firsts``; None: they
        #: are not looked at yet.
        self._firsts: Iterator[QueuedTask] | None = None
        self._first_of_firsts: QueueClass | None = None
        self._first: QueueClass | None = None
        #: What the classes ask for that are short of quota, and are passed over. They keep the place of their
        #: pool among others: the latest place of one that was passed over.
        self._short: set[int] = set()
        self.passed = _FIRST

    @property
    def is_outdated(self) -> bool:
        """Whether there were facts since the order was found out: other classes may come first, or be short
        of quota.
        """
        return self._facts != len(self._tx.facts)

    @property
    def first(self) -> QueueClass | None:
        """The class that is served next; None: none."""
        if self.is_outdated:
            self._facts, self.passed = len(self._tx.facts), _FIRST
            self._first = self._first_of_firsts = self._firsts = None
        if self._first is None and self._classes:
            self._first = self._next()
        return self._first

    def pass_over(self, is_short: Callable[[QueueClass], bool]) -> list[QueueClass]:
        """Pass over the classes that are short of quota, which depends on what they ask for alone; returns
        them.
        """
        one_of_each = {id(c.asked): c for c in self._classes}
        self._short = {key for key, c in one_of_each.items() if c.entries and is_short(c)}
        if not self._short:
            return []
        short = [c for c in self._classes if id(c.asked) in self._short]
        if len(short) == len(self._classes):
            self._classes.clear()
        return short

    def drop(self, queue_class: QueueClass) -> None:
        """Serve a class no more."""
        del self._classes[queue_class]
        self._first = None

    def sort_anew(self) -> None:
        """Another task of a class is served next."""
        self._first = None

    def _next(self) -> QueueClass | None:
        """The class whose next task comes first."""
        elsewhere = [(c.first, c) for c in self._extra if self._serves(c) and c not in self._later]
        elsewhere += [(entry, c) for c, entry in self._later.items() if self._serves(c)]
        queue_class = self._next_of_firsts()
        if queue_class is not None and elsewhere:
            elsewhere.append((queue_class.first, queue_class))
        return min(elsewhere, key=_entry_of)[1] if elsewhere else queue_class

    def _next_of_firsts(self) -> QueueClass | None:
        """The class whose first task comes first, of those whose first task is served next."""
        queue = self._tx.state.queue
        if self._firsts is None:
            self._firsts = queue.firsts_of(self.pool_name)
        queue_class = self._first_of_firsts
        while queue_class is None or not self._serves_first(queue_class):
            task = next(self._firsts, None)
            if task is None:
                return None
            queue_class = self._first_of_firsts = task.queue_class
        return queue_class

    def _serves_first(self, queue_class: QueueClass) -> bool:
        """Whether the first task of a class is served next when it is its turn; it is dropped if not."""
        if queue_class not in self._classes or queue_class in self._later:
            return False
        if id(queue_class.asked) not in self._short:
            return True
        self.passed = max(self.passed, plain(queue_class.first))
        del self._classes[queue_class]
        return False

    def _serves(self, queue_class: QueueClass) -> bool:
        return queue_class in self._classes and bool(queue_class.entries)


def _entry_of(place: tuple[Entry, QueueClass]) -> Entry:
    return place[0]


def plain(entry: Entry) -> Entry:
    """A place as other pools see it: shares of owners do not count."""
    value, number, task_id = entry
    return (float(value), number, task_id)
