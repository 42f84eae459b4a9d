"""The classes of a fair pool in the order in which a pass serves them.

The order is that of owners by what they have used, which each start changes. Against other pools a fair pool
has the place of the task that comes first in it, whatever its owner has used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from math import inf

from schedulemesh.engine.state.fair_order import Entry, FairFirsts
from schedulemesh.engine.state.queue_classes import AskedClasses, QueueClass
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction

#: Before every place.
_FIRST: Entry = (-inf, 0, "")

#: Those of the classes that ask for the same which a pass serves.
Served = dict[AskedClasses, Collection[QueueClass]]


class FairClasses:
    """The classes of a fair pool in their order, which changes with every fact."""

    def __init__(
        self, tx: Transaction, pool_name: str, served: Served, later: dict[QueueClass, Entry]
    ) -> None:
        self.pool_name = pool_name
        self._tx, self._served, self._later = tx, served, later
        #: What is opened after this is not served.
        self._opened = tx.state.queue.opened
        #: Those that are served no more.
        self._dropped: set[QueueClass] = set()
        #: How many facts there were when this order was found out; -1: it is found out anew.
        self.facts = len(tx.facts)
        #: Whether those that are short of quota were looked for: only once one may not start, or has started.
        self._is_checked = False
        #: Nobody waits for extra members, so that they are not among the firsts of the pool.
        self._extra: list[QueueClass] = []
        for alike, classes in served.items():
            if alike.extra:
                self._extra += [c for c in classes if c.extra]
        #: The first tasks of the pool's classes, behind that of the class ``_first_of_firsts``; None: they
        #: are not looked at yet.
        self._firsts: Iterator[QueuedTask] | None = None
        self._first_of_firsts: QueueClass | None = None
        self._first: QueueClass | None = None
        #: Classes that are short of quota, and are passed over. They keep the place of their pool among
        #: others: the latest place of one that was passed over.
        self._short: set[AskedClasses] = set()
        self.passed = _FIRST

    def leave_out(self, served: Collection[QueueClass], opened: int) -> None:
        """Serve neither these classes nor those that were opened later."""
        self._dropped.update(served)
        self._opened = opened

    def begin_anew(self) -> None:
        """There were facts: other classes may come first, or be short of quota."""
        self.facts, self.passed, self._is_checked = len(self._tx.facts), _FIRST, True
        self._first = self._first_of_firsts = self._firsts = None

    def first(self) -> QueueClass | None:
        """The class that is served next; None: none."""
        if self._first is None and self._served:
            is_ordered = not self._extra and not self._later
            self._first = self._next_of_firsts() if is_ordered else self._next()
        return self._first

    def pass_over(
        self,
        is_short: Callable[[QueueClass], bool],
        has_room: Callable[[QueueClass], bool] | None,
        *,
        by_place: bool,
    ) -> None:
        """Pass over the classes that are short of quota, which depends on what they ask for alone, and have
        no pass try them until some becomes free; without those that have no room (None: all may have some).
        ``by_place``: that depends on ``QueueClass.on_nodes`` alone, where it is not empty.
        """
        self._short, is_all_short = set(), True
        is_unchanged = self._opened == self._tx.state.queue.opened
        for alike, served in self._served.items():
            one = next(iter(served), None)
            if one is None or not one.entries or self._dropped or not is_unchanged:
                one = self._any_of(served)
                if one is None:
                    continue
            if not is_short(one):
                is_all_short = False
                continue
            self._short.add(alike)
            is_alike = has_room is None or (by_place and _same_place(one, served))
            if is_unchanged and is_alike and served is alike.open:
                if has_room is None or has_room(one):
                    alike.close_others(self._dropped)
            elif alike.open:
                self._close(alike, served, has_room)
        if is_all_short:
            self._served = {}

    def _close(
        self,
        alike: AskedClasses,
        served: Collection[QueueClass],
        has_room: Callable[[QueueClass], bool] | None,
    ) -> None:
        """Have no pass try those of these classes that are served and have room."""
        for queue_class in list(served):
            if self._is_served(queue_class) and (has_room is None or has_room(queue_class)):
                alike.close(queue_class)

    def drop(self, queue_class: QueueClass) -> None:
        """Serve a class no more, as it may not start; others like it may be short of quota, too."""
        self._dropped.add(queue_class)
        self._first = None
        if not self._is_checked:
            self.facts = -1

    def sort_anew(self) -> None:
        """Another task of a class is served next."""
        self._first = None

    def _any_of(self, classes: Collection[QueueClass]) -> QueueClass | None:
        """One of these classes that is served, and has entries; None: there is none."""
        return next(filter(self._serves, classes), None)

    def _next(self) -> QueueClass | None:
        """The class whose next task comes first."""
        queue_class = self._next_of_firsts()
        elsewhere = [(c.first, c) for c in self._extra if self._serves(c) and c not in self._later]
        elsewhere += [(entry, c) for c, entry in self._later.items() if self._serves(c)]
        if queue_class is not None and elsewhere:
            elsewhere.append((queue_class.first, queue_class))
        return min(elsewhere, key=_entry_of)[1] if elsewhere else queue_class

    def _next_of_firsts(self) -> QueueClass | None:
        """The class whose first task comes first, of those whose first task is served next."""
        queue_class = self._first_of_firsts
        if self._firsts is None:
            queue = self._tx.state.queue
            pool = queue.pools.get(self.pool_name)
            if pool is None or not isinstance(pool.firsts, FairFirsts):
                return None
            first = pool.firsts.first_if_any()
            of_first = None if first is None else queue.by_id[first[-1]].queue_class
            if of_first is not None and self._serves_first(of_first):
                return of_first
            self._firsts = queue.firsts_of(self.pool_name)
        while queue_class is None or not self._serves_first(queue_class):
            task = next(self._firsts, None)
            if task is None:
                return None
            queue_class = self._first_of_firsts = task.queue_class
        return queue_class

    def _serves_first(self, queue_class: QueueClass) -> bool:
        """Whether the first task of a class is served next when it is its turn; it is dropped if not."""
        if queue_class in self._later or not self._is_served(queue_class):
            return False
        if queue_class.alike not in self._short:
            return True
        self.passed = max(self.passed, plain(queue_class.first))
        self._dropped.add(queue_class)
        return False

    def _serves(self, queue_class: QueueClass) -> bool:
        return self._is_served(queue_class) and bool(queue_class.entries)

    def _is_served(self, queue_class: QueueClass) -> bool:
        alike = queue_class.alike
        if alike is None or queue_class in self._dropped or queue_class.opened > self._opened:
            return False
        return queue_class in self._served.get(alike, ())


def with_fair_pools(
    tx: Transaction, classes: Iterable[QueueClass], later: dict[QueueClass, Entry]
) -> tuple[list[QueueClass], dict[str, FairClasses]]:
    """These classes without those of fair pools, and those by pool. ``later``: of classes whose first task is
    not served, the one that is.
    """
    others, by_pool = list[QueueClass](), dict[str, dict[AskedClasses, dict[QueueClass, None]]]()
    for queue_class in classes:
        if queue_class.alike is None:
            others.append(queue_class)
        else:
            of_pool = by_pool.setdefault(queue_class.pool_name, {})
            of_pool.setdefault(queue_class.alike, {})[queue_class] = None
    fair = {name: FairClasses(tx, name, {**of_pool}, later) for name, of_pool in by_pool.items()}
    return others, fair


def _same_place(one: QueueClass, classes: Collection[QueueClass]) -> bool:
    """Whether all of these classes run on a node, with the same needs and labels as one of them."""
    places = one.on_nodes
    return bool(places) and not [c for c in classes if c.on_nodes is not places]


def _entry_of(place: tuple[Entry, QueueClass]) -> Entry:
    return place[0]


def plain(entry: Entry) -> Entry:
    """A place as other pools see it: shares of owners do not count."""
    value, number, task_id = entry
    return (float(value), number, task_id)
