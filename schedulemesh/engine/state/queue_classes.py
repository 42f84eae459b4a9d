"""The classes of tasks that wait in one pool: those of a class differ only in their order and duration.

In a pool that counts owners they may also differ in their owner. A class then has of each owner only as many
entries as that owner's limits permit to start now, the first ones; the others are withheld, as if they did
not wait, until the owner has room for them. So an owner at its limit keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import inf

from sortedcontainers import SortedList

from schedulemesh.domain.agent import Alternative
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.fair_order import Entry, FairFirsts, OwnedReady

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

#: Labels of nodes, and what is asked for on one of them, for each way of running.
Places = tuple[tuple[NodeLabels, Resources], ...]

#: What classes asked for that are gone, beyond twice as much as there are classes, at which it is forgotten.
_SPARE = 64


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
        """Remove an entry; whether it was in the class."""
        self.size -= 1
        is_admitted = self.admitted > self.size
        if self.room is not None:
            is_admitted = is_admitted or self.entries.bisect_left(entry) < self.admitted
            self.entries.remove(entry)
        self.admitted -= is_admitted
        return is_admitted


class QueueClass:
    """Tasks of one pool that differ only in their order and duration: if one does not fit, none does."""

    __slots__ = (
        "asked",
        "entries",
        "exceeds",
        "extra",
        "key",
        "labels",
        "need",
        "on_nodes",
        "owners",
        "pool_name",
        "priority",
        "shortest",
        "submissions",
    )

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.pool_name, self.priority = key[:2]
        self.labels: Labels = dict(key[6])
        #: What each of them asks for; None: what is usual in the pool.
        self.need = key[2]
        #: The same object in all classes of a queue that ask for the same.
        self.asked: Asked = (key[2], key[9], key[10], key[11])
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
    def each_labels(self) -> tuple[NodeLabels, ...]:
        """The labels of nodes that its tasks ask for, in each of their alternatives."""
        alternatives = self.key[10]
        return tuple(one.node_labels for one in alternatives) if alternatives else (self.key[9],)

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
        "_asked",
        "classes",
        "firsts",
        "later",
        "later_of_owner",
        "of_owner",
        "ready",
        "withheld",
    )

    def __init__(self, *, is_fair: bool = False) -> None:
        self.classes: dict[ClassKey, QueueClass] = {}
        #: See ``QueueClass.asked``.
        self._asked: dict[Asked, Asked] = {}
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
        queue_class = self.classes[key] = QueueClass(key)
        if len(self._asked) > 2 * (len(self.classes) + len(self.withheld)) + _SPARE:
            self._asked = {}
            for one in (*self.classes.values(), *self.withheld.values()):
                one.asked = self._asked.setdefault(one.asked, one.asked)
        queue_class.asked = self._asked.setdefault(queue_class.asked, queue_class.asked)
        return queue_class

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
        if of_owner.remove(entry):
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

    def sort_firsts(self, owner: str | None) -> None:
        """Have the classes of a fair pool come in another order, as an owner has used more or less; None: as
        past use counts in another way.
        """
        if isinstance(self.firsts, FairFirsts):
            self.firsts.sort_anew(owner)

    def _let_in(self, queue_class: QueueClass, entry: Entry) -> None:
        entries = queue_class.entries
        if not queue_class.extra and (not entries or entry < entries[0]):
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
