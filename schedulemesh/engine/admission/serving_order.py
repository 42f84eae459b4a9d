"""The order in which a pass over the queue serves classes of tasks: those of the pools with the lowest share
first, then in the order of the queue. A fair pool is served in the order of its owners, at the place of its
first task.

Of the groups of alike classes (``sure_refusals``) only those classes are in it that may start. Shares only
grow while tasks start, so a class whose share has grown is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

import msgspec

from schedulemesh.engine.admission.fair_classes import FairClasses, plain
from schedulemesh.engine.admission.sure_refusals import UnrefusedClasses
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.need_index import LeastNeed
from schedulemesh.engine.state.queue_classes import QueueClass
from schedulemesh.engine.state.shares import ShareKey
from schedulemesh.engine.transaction import Transaction

#: The share, the place in the queue, and the number of a class, of a fair pool or of a group.
Turn = tuple[ShareKey, Entry, int]


class OpenClasses(msgspec.Struct, frozen=True):
    """What is served: classes one by one, those of fair pools by pool, and the groups of the others."""

    classes: list[QueueClass]
    fair: dict[str, FairClasses]
    groups: list[UnrefusedClasses] = []


class TurnRules(msgspec.Struct, frozen=True, kw_only=True):
    """By what classes are compared."""

    #: The share of a class; None: all have the same.
    share: Callable[[QueueClass], ShareKey] | None
    #: Of classes whose first task is not served, the entry that is.
    later: Mapping[QueueClass, Entry]
    #: The class of a fair pool that is served next; None: none of it may start.
    first_of: Callable[[FairClasses], QueueClass | None]
    #: What says of classes of a group that surely none of them starts. While tasks start, that holds for ever
    #: more classes, unless ``forgets`` has changed.
    refuses: Callable[[UnrefusedClasses], Callable[[LeastNeed], bool]]
    forgets: Callable[[], tuple[int, int]]


class ServingOrder:
    """The classes that are served, one after the other: ``next``, and ``note`` after each."""

    def __init__(self, tx: Transaction, opened: OpenClasses, by: TurnRules) -> None:
        self._tx, self._by = tx, by
        self._served = [c for c in opened.classes if c.entries]
        #: Of the fair pools, by the number of the class of theirs that is served next.
        self._fair_at: dict[int, FairClasses] = {}
        for fair_classes in opened.fair.values():
            if (first := by.first_of(fair_classes)) is not None:
                self._fair_at[len(self._served)] = fair_classes
                self._served.append(first)
        #: By the negative numbers that stand for them.
        self._group_at = {~number: group for number, group in enumerate(opened.groups)}
        self._heap = [self._turn_of(number) for number in range(len(self._served))]
        heapify(self._heap)
        #: The turn that was taken last, and the number of its class.
        self._turn: Turn = ((), (0.0, 0, ""), 0)
        self._number = 0
        #: What was said of refusals when all groups were sought in, and how many facts there were when each
        #: was last.
        self._forgets = by.forgets()
        self._sought: dict[int, int] = {}
        for number in self._group_at:
            self._seek(number, None)

    def next(self) -> QueueClass | None:
        """The class that is served next; None: all have been."""
        while self._heap:
            self._turn = heappop(self._heap)
            number = self._turn[2]
            if number < 0:
                taken = self._taken_from(number)
                if taken is None:
                    continue
                number = len(self._served)
                self._served.append(taken)
            self._number = number
            if (queue_class := self._class_at(number)) is None:
                continue
            may_come_later = queue_class.owners or number in self._fair_at
            if may_come_later and self._comes_later():
                heappush(self._heap, self._turn_of(number))
            elif self._by.share is not None and self._by.share(queue_class) > self._turn[0]:
                self.note(queue_class, again=True)
            else:
                return queue_class
        return None

    def note(self, queue_class: QueueClass, *, again: bool) -> None:
        """A class was served; ``again``: another task of it may start."""
        number, fair = self._number, self._fair_at.get(self._number)
        if again:
            if fair is not None:
                fair.sort_anew()
                if self._by.first_of(fair) is None:
                    return
            heappush(self._heap, self._turn_of(number))
        elif fair is not None:
            fair.drop(queue_class)
            heappush(self._heap, (*self._turn[:2], number))
        if not self._group_at:
            return
        if self._forgets != self._by.forgets():
            self._forgets = self._by.forgets()
            for of_group in self._group_at:
                self._seek(of_group, self._turn[1])
        elif self._turn[2] < 0:
            self._seek(self._turn[2], self._turn[1])

    def _turn_of(self, number: int) -> Turn:
        queue_class, fair = self._served[number], self._fair_at.get(number)
        entry = self._by.later.get(queue_class) or queue_class.first
        if fair is not None:
            entry = max(plain(entry), fair.passed)
        return (() if self._by.share is None else self._by.share(queue_class), entry, number)

    def _class_at(self, number: int) -> QueueClass | None:
        """The class with a number, of a fair pool the one that is served next; None: there is none left, as
        owners have reached their limits, or as many members of an array run as may.
        """
        fair = self._fair_at.get(number)
        if fair is None:
            return self._served[number] if self._served[number].entries else None
        first = self._by.first_of(fair)
        if first is not None:
            self._served[number] = first
        return first

    def _comes_later(self) -> bool:
        """Whether others come by now before the class whose turn it is."""
        return bool(self._heap) and self._turn_of(self._number)[1] > self._turn[1]

    def _taken_from(self, number: int) -> QueueClass | None:
        """The class of a group whose turn it is; None: another one is the next, or it does not start."""
        group, entry = self._group_at[number], self._turn[1]
        if entry == group.entry and self._sought[number] != len(self._tx.facts):
            self._seek(number, entry, begin=True)
        return group.take(entry)

    def _seek(self, number: int, entry: Entry | None, *, begin: bool = False) -> None:
        """Put a group into the order with its first class behind this place that may start; ``begin``: or at
        this place.
        """
        group = self._group_at[number]
        group.seek(entry, self._by.refuses(group), begin=begin)
        self._sought[number] = len(self._tx.facts)
        if group.entry is not None and not (begin and group.entry == entry):
            heappush(self._heap, ((), group.entry, number))
