"""The classes of tasks that wait in one pool: those of a class differ only in their order and duration.

In a pool that counts owners they may also differ in their owner. A class then has of each owner only as many
entries as that owner's limits permit to start now, the first ones; the others are withheld, as if they did
not wait, until the owner has room for them. So an owner at its limit keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from math import inf
from typing import ClassVar

from sortedcontainers import SortedList

from schedulemesh.domain.agent import Alternative
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.fair_order import Entry, FairFirsts, OwnedReady
from schedulemesh.engine.state.need_index import Alike, LeastNeed, NeedIndex

ClassKey = tuple[
    str,
    float,
    Resources | None,
    tuple[Resources, ...],
    tuple[str, str, int] | None,
    bool,
    tuple[tuple[str, str], ...],
    str | None,
    tuple[str, ...] | None,
    NodeLabels,
    tuple[Alternative, ...],
    str,
    str,
    str,
    bool,
    bool,
]


#: What the tasks of a class ask for, the labels of nodes, and their alternatives: what payment depends on.
#: The flavor is that of extra members, which have one already.
Asked = tuple[Resources | None, NodeLabels, tuple[Alternative, ...], str]

#: Those of some labels that rules of preemption name, sorted.
Relevant = Callable[[Labels], tuple[tuple[str, str], ...]]

#: Labels of nodes, and what is asked for on one of them, for each way of running.
Places = tuple[tuple[NodeLabels, Resources], ...]


class OwnerEntries:
    """The entries of one owner in a class, and how many of them may start by its limits."""

    __slots__ = ("admitted", "entries", "room", "size")

    def __init__(self, room: int | None) -> None:
        #: How many there are; how many of them are in the class, the first ones.
        self.size = self.admitted = 0
        #: None: any number, in the class as long as it exists.
        self.room = room
        #: All of them; empty where any number may start, as all are in the class then.
        self.entries: SortedList[Entry] = SortedList()

    def add(self, entry: Entry) -> None:
        """Add an entry, which is not in the class yet."""
        self.size += 1
        if self.room is not None:
            self.entries.add(entry)

    def remove(self, entry: Entry) -> bool:
        """Remove an entry, where not any number may start; whether it was in the class."""
        self.size -= 1
        is_admitted = self.admitted > self.size or self.entries.bisect_left(entry) < self.admitted
        self.entries.remove(entry)
        self.admitted -= is_admitted
        return is_admitted


class AskedClasses:
    """The classes of a fair pool that ask for the same: quota is short for all of them, or for none. Without
    those of which every entry is withheld.
    """

    __slots__ = ("classes", "extra", "open")

    def __init__(self) -> None:
        self.classes: dict[QueueClass, None] = {}
        #: Those of extra members.
        self.extra: dict[QueueClass, None] = {}
        #: Those that the next pass tries, see ``Queue.open``; the same object as ``classes``: all.
        self.open: dict[QueueClass, None] = self.classes

    def add(self, queue_class: QueueClass) -> None:
        """Add a class, which the next pass tries."""
        self.classes[queue_class] = self.open[queue_class] = None
        if queue_class.extra:
            self.extra[queue_class] = None

    def remove(self, queue_class: QueueClass) -> None:
        """Remove a class."""
        self.classes.pop(queue_class, None)
        self.extra.pop(queue_class, None)
        self.open.pop(queue_class, None)

    def close(self, queue_class: QueueClass) -> None:
        """Have no pass try one of them."""
        if self.open is self.classes:
            self.open = dict(self.classes)
        self.open.pop(queue_class, None)

    def close_others(self, left_open: Collection[QueueClass]) -> None:
        """Have no pass try any but these."""
        self.open = {one: None for one in left_open if one in self.open} if left_open else {}

    def open_all(self) -> None:
        """Have the next pass try all of them."""
        self.open = self.classes


class QueueClass:
    """Tasks of one pool that differ only in their order and duration: if one does not fit, none does."""

    __slots__ = (
        "alike",
        "entries",
        "exceeds",
        "extra",
        "key",
        "labels",
        "need",
        "on_nodes",
        "opened",
        "owners",
        "pool_name",
        "priority",
        "relevant",
        "shortest",
        "submissions",
    )

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.pool_name, self.priority = key[:2]
        self.labels: Labels = dict(key[6])
        #: Those of its labels that rules of preemption name.
        self.relevant = key[6]
        #: What each of them asks for; None: what is usual in the pool.
        self.need = key[2]
        #: Of a fair pool, all classes that ask for the same; None: the pool is not fair.
        self.alike: AskedClasses | None = None
        #: The number of classes that were opened by themselves until this one was; see ``Queue.opened``.
        self.opened = 0
        #: Whether each of them alone exceeds its owner's limits.
        self.exceeds = key[-2]
        #: Whether they are extra members of elastic gangs, for which nobody waits.
        self.extra = key[-1]
        #: Those that may start as far as their owners' limits are concerned.
        self.entries: SortedList[Entry] = SortedList()
        #: All of them by owner, where the pool counts owners; else empty.
        self.owners: dict[str, OwnerEntries] = {}
        #: No task of it has declared a shorter duration, or time limit, in seconds since it last was empty.
        self.shortest = inf
        #: The submission of one of them in each way in which they may run; empty: not needed yet.
        self.submissions: tuple[TaskSubmitted, ...] = ()
        #: See ``needs.on_nodes``; None: not needed yet.
        self.on_nodes: Places | None = None

    def forget_ways(self) -> None:
        """The ways in which its tasks may run have changed."""
        self.submissions, self.on_nodes = (), None

    @property
    def asked(self) -> Asked:
        """What its tasks ask for, as far as payment depends on it."""
        return (self.key[2], self.key[9], self.key[10], self.key[11])

    @property
    def each_labels(self) -> tuple[NodeLabels, ...]:
        """The labels of nodes that its tasks ask for, in each of their alternatives."""
        alternatives = self.key[10]
        return tuple(one.node_labels for one in alternatives) if alternatives else (self.key[9],)

    @property
    def group(self) -> Alike | None:
        """The group to which it belongs in ``NeedIndex``. None: to none, as its tasks do not run on one node,
        in one way and with an amount that they say themselves.
        """
        need, key = self.need, self.key
        own_group, placed, job_strategy, alternatives, flavor = (
            key[4],
            key[5],
            key[7],
            key[10],
            key[11],
        )
        if need is None or own_group is not None or not placed or job_strategy is not None:
            return None
        if alternatives or flavor or self.extra:
            return None
        return (self.relevant, key[9], need.gpu, need.custom)

    def least_need_at(self, entry: Entry) -> LeastNeed:
        """The class alone in ``NeedIndex``, with this first entry."""
        need = self.need or NOTHING
        return LeastNeed(
            first=entry,
            last=entry,
            cpu=need.cpu,
            memory=need.memory,
            shortest=self.shortest,
            priority=self.priority,
        )

    @property
    def is_empty(self) -> bool:
        """Whether no task is of this class."""
        return not self.entries and not self.owners

    @property
    def first(self) -> Entry:
        """The entry of the task that is served first."""
        entry: Entry = self.entries[0]
        return entry

    def note_length(self, spec: TaskSpec) -> None:
        """Note for how long a task of it runs, as it says itself."""
        for seconds in (spec.estimated_duration, spec.max_run_s):
            if seconds is not None:
                self.shortest = min(self.shortest, seconds)


class PoolQueue:
    """The queue of one pool."""

    __slots__ = (
        "alike",
        "apart",
        "by_need",
        "by_priority",
        "classes",
        "closed",
        "firsts",
        "later",
        "later_of_owner",
        "of_owner",
        "ready",
        "withheld",
    )

    #: With so many classes, until there are half as many, a pass looks for those that may start by what they
    #: ask for.
    many: ClassVar[int] = 32

    def __init__(self, *, is_fair: bool = False) -> None:
        self.classes: dict[ClassKey, QueueClass] = {}
        #: The same by priority.
        self.by_priority: dict[float, dict[QueueClass, None]] = {}
        #: Of a fair pool, its classes by what they ask for; None: the pool is not fair.
        self.alike: dict[Asked, AskedClasses] | None = {} if is_fair else None
        #: Of one that is not fair, the classes that were short of quota, and none was freed since: no pass
        #: tries them.
        self.closed: dict[QueueClass, None] = {}
        #: The classes that are in a group, and the others. Made when a pass asks for it; None: it is not.
        self.by_need: NeedIndex | None = None
        self.apart: dict[QueueClass, None] = {}
        #: Classes of which every entry is withheld.
        self.withheld: dict[ClassKey, QueueClass] = {}
        #: The classes in which each owner has tasks, with these, where the pool counts owners.
        self.of_owner: dict[str, dict[QueueClass, OwnerEntries]] = {}
        #: The first entry of each class but those of extra members.
        self.firsts: SortedList[Entry] | FairFirsts = FairFirsts() if is_fair else SortedList()
        #: The entries of all classes.
        self.ready: SortedList[Entry] | OwnedReady = OwnedReady() if is_fair else SortedList()
        #: (number, task id) of tasks that may not start yet.
        self.later: SortedList[tuple[int, str]] = SortedList()
        #: How many of these each owner has, without extra members.
        self.later_of_owner: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Tasks of the pool that wait, those that may not start included."""
        return len(self.ready) + len(self.later)

    def count_before(self, entry: Entry) -> int:
        """How many of the tasks that may start come before this place."""
        if isinstance(self.ready, OwnedReady):
            return self.ready.index(entry)
        return int(self.ready.bisect_left(entry))

    def new_class(self, key: ClassKey) -> QueueClass:
        """Add a class without tasks."""
        queue_class = QueueClass(key)
        self._add_class(queue_class)
        return queue_class

    def _add_class(self, queue_class: QueueClass) -> None:
        self.classes[queue_class.key] = queue_class
        self.by_priority.setdefault(queue_class.priority, {})[queue_class] = None
        if self.alike is not None:
            alike = self.alike.get(queue_class.asked)
            if alike is None:
                alike = self.alike[queue_class.asked] = AskedClasses()
            queue_class.alike = alike
            alike.add(queue_class)
        if self.by_need is not None and queue_class.group is None:
            self.apart[queue_class] = None

    def remove_class(self, queue_class: QueueClass) -> None:
        """Remove a class that has no entries."""
        if self.withheld.pop(queue_class.key, None) is None:
            self._remove_class(queue_class)

    def _remove_class(self, queue_class: QueueClass) -> None:
        del self.classes[queue_class.key]
        self.closed.pop(queue_class, None)
        self.apart.pop(queue_class, None)
        same_priority = self.by_priority[queue_class.priority]
        del same_priority[queue_class]
        if not same_priority:
            del self.by_priority[queue_class.priority]
        if queue_class.alike is not None and self.alike is not None:
            queue_class.alike.remove(queue_class)
            if not queue_class.alike.classes:
                del self.alike[queue_class.asked]

    def indexed_by_need(self) -> NeedIndex | None:
        """Its classes by what they ask for; None: they are few."""
        if len(self.classes) < self.many // 2:
            self.by_need, self.apart = None, {}
        elif self.by_need is None and len(self.classes) >= self.many:
            self.by_need = NeedIndex()
            for queue_class in self.classes.values():
                if queue_class.group is None:
                    self.apart[queue_class] = None
                elif queue_class.entries:
                    self._move(queue_class, None, queue_class.first)
        return self.by_need

    def _move(self, queue_class: QueueClass, before: Entry | None, after: Entry | None) -> None:
        """A class has another first entry in the index. None: it has none."""
        group = queue_class.group
        if group is None or self.by_need is None:
            return
        if before is not None:
            self.by_need.remove(group, before)
        if after is not None:
            self.by_need.add(group, queue_class.least_need_at(after))

    def note_length(self, queue_class: QueueClass, spec: TaskSpec) -> None:
        """Note for how long a task of a class runs, as it says itself."""
        before = queue_class.shortest
        queue_class.note_length(spec)
        if queue_class.shortest < before and self.by_need is not None and queue_class.entries:
            group = queue_class.group
            if group is not None:
                self.by_need.groups[group].shorten(queue_class.first, queue_class.shortest)

    def name_labels(self, relevant: Relevant) -> None:
        """Other labels of its classes are named by the rules of preemption."""
        self.by_need, self.apart = None, {}
        for queue_class in (*self.classes.values(), *self.withheld.values()):
            queue_class.relevant = relevant(queue_class.labels)

    def withhold(self, queue_class: QueueClass) -> None:
        """Have a class, of which no entry may start, wait for that."""
        self._remove_class(queue_class)
        self.withheld[queue_class.key] = queue_class

    def withhold_no_more(self, queue_class: QueueClass) -> None:
        """Have one that has waited for that be among the others again."""
        del self.withheld[queue_class.key]
        self._add_class(queue_class)

    def in_order(self, begin: int, end: int | None) -> Iterator[str]:
        """The ids of the tasks from the place ``begin`` on, the first of all being 0, and before ``end``;
        those that may not start yet come last. Takes no longer for the last ones than for the first.
        """
        count = len(self.ready)
        last = None if end is None else max(0, end - count)
        yield from (task_id for *_, task_id in self.ready.islice(begin, end))
        yield from (task_id for _, task_id in self.later.islice(max(0, begin - count), last))

    def add_later(self, number: int, spec: TaskSpec) -> None:
        """Add a task that may not start yet."""
        self.later.add((number, spec.task_id))
        if not spec.extra_of:
            self.later_of_owner[spec.owner] = self.later_of_owner.get(spec.owner, 0) + 1

    def remove_later(self, number: int, spec: TaskSpec) -> None:
        """Remove a task that might not start yet."""
        self.later.remove((number, spec.task_id))
        if spec.extra_of:
            return
        self.later_of_owner[spec.owner] -= 1
        if not self.later_of_owner[spec.owner]:
            del self.later_of_owner[spec.owner]

    def place(self, queue_class: QueueClass, entry: Entry) -> None:
        """Add an entry to a class."""
        self._add_ready(entry, "")
        self._let_in(queue_class, entry)

    def place_all(self, entries: Mapping[QueueClass, list[Entry]]) -> None:
        """Add these entries to their classes, in a pool that does not count owners."""
        self.by_need, self.apart = None, {}
        for queue_class, added in entries.items():
            first = queue_class.entries[0] if queue_class.entries else None
            queue_class.entries.update(added)
            if queue_class.extra or queue_class.first == first:
                continue
            if first is not None:
                self.firsts.remove(first)
            self.firsts.add(queue_class.first)
        if isinstance(self.ready, OwnedReady):
            raise TypeError("a fair pool counts owners")
        self.ready.update(chain.from_iterable(entries.values()))

    def displace(self, queue_class: QueueClass, entry: Entry) -> None:
        """Remove an entry from its class."""
        self._remove_ready(entry, "")
        self._take_out(queue_class, entry)

    def place_of_owner(
        self, queue_class: QueueClass, entry: Entry, owner: str, room: int | None
    ) -> None:
        """Add an entry to a class of a pool that counts owners, where its owner has this room."""
        self._add_ready(entry, owner)
        of_owner = queue_class.owners.get(owner)
        if of_owner is None:
            of_owner = queue_class.owners[owner] = OwnerEntries(room)
            self.of_owner.setdefault(owner, {})[queue_class] = of_owner
        of_owner.add(entry)
        room, admitted = of_owner.room, of_owner.admitted
        if room is None or admitted < room or of_owner.entries.bisect_left(entry) < room:
            self._let_in(queue_class, entry)
            of_owner.admitted += 1
            if room is not None and admitted == room:
                self.set_room(queue_class, of_owner, room)

    def displace_of_owner(self, queue_class: QueueClass, entry: Entry, owner: str) -> None:
        """Remove an entry from its class in such a pool. The next one of its owner takes its place when
        ``set_room`` says so.
        """
        self._remove_ready(entry, owner)
        of_owner = queue_class.owners[owner]
        if of_owner.room is None:
            of_owner.size = of_owner.admitted = of_owner.size - 1
            self._take_out(queue_class, entry)
        elif of_owner.remove(entry):
            self._take_out(queue_class, entry)
        if not of_owner.size:
            del queue_class.owners[owner]
            classes = self.of_owner[owner]
            del classes[queue_class]
            if not classes:
                del self.of_owner[owner]

    def set_room(self, queue_class: QueueClass, of_owner: OwnerEntries, room: int) -> None:
        """As many entries of an owner as this are in the class from now on."""
        of_owner.room = room
        before, after = of_owner.admitted, min(room, of_owner.size)
        of_owner.admitted = after
        for entry in of_owner.entries[before:after]:
            self._let_in(queue_class, entry)
        for entry in of_owner.entries[after:before]:
            self._take_out(queue_class, entry)

    def _add_ready(self, entry: Entry, owner: str) -> None:
        if isinstance(self.ready, OwnedReady):
            self.ready.add(entry, owner)
        else:
            self.ready.add(entry)

    def _remove_ready(self, entry: Entry, owner: str) -> None:
        if isinstance(self.ready, OwnedReady):
            self.ready.remove(entry, owner)
        else:
            self.ready.remove(entry)

    def _let_in(self, queue_class: QueueClass, entry: Entry) -> None:
        entries = queue_class.entries
        if not queue_class.extra and (not entries or entry < entries[0]):
            if self.by_need is not None:
                self._move(queue_class, entries[0] if entries else None, entry)
            if entries:
                self.firsts.remove(entries[0])
            self.firsts.add(entry)
        entries.add(entry)

    def _take_out(self, queue_class: QueueClass, entry: Entry) -> None:
        entries = queue_class.entries
        was_first = entry == entries[0]
        entries.remove(entry)
        if was_first and not queue_class.extra:
            self.firsts.remove(entry)
            if entries:
                self.firsts.add(entries[0])
            if self.by_need is not None:
                self._move(queue_class, entry, entries[0] if entries else None)
